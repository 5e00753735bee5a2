"""The shell scripts of the templates in launch/, run with programs that only note their calls."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from launch_files import LAUNCH, TEMPLATES, documents, pods, runs, shell, text, written_programs

SLURM = [name for name in TEMPLATES if name.endswith(".sbatch")]

DIRECTIVES = {
    "job-name": r"[\w-]+", "partition": r"[\w-]+", "ntasks": r"\d+", "array": r"\d+-\d+(%\d+)?", "requeue": "",
    "gres": r"gpu(:\w+)?:\d+", "cpus-per-task": r"\d+", "mem": r"\d+[KMGT]", "time": r"(\d+-)?\d+:\d\d:\d\d",
    "signal": r"(R?B:)?[A-Z0-9]+@\d+", "open-mode": r"append|truncate", "output": r"[\w%.-]+",
}  # fmt: skip
"""Options of sbatch that the templates use, with their values."""


@pytest.mark.parametrize("template", SLURM)
def test_sbatch_directives_are_known_and_stand_before_the_first_command(template):
    lines = text(template).splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH")]
    for line in directives:
        name, _, value = line.removeprefix("#SBATCH --").partition("=")
        assert re.fullmatch(DIRECTIVES[name], value), line
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert max(map(lines.index, directives)) < first
    assert lines[0] == "#!/bin/bash"
    assert {"--requeue", "--open-mode=append"} <= {line.removeprefix("#SBATCH ") for line in directives}


def scripts() -> dict[str, str]:
    """Every script for a shell, by where it is."""
    found = {name: text(name) for name in SLURM}
    for name in ("kubernetes/trainer.yaml", "kubernetes/spot.yaml"):
        found |= {
            f"{name} {pod.containers[0].name}": shell(pod.containers[0])
            for pod, _ in pods(name)
            if pod.containers[0].args
        }
    for name in (name for name in TEMPLATES if name.startswith("skypilot/")):
        tasks = [task for task in documents(name) if "run" in task]
        found |= {f"{name} {task['name']} {part}": task[part] for task in tasks for part in ("setup", "run")}
    (cluster,) = documents("ray/cluster.yaml")
    found |= {f"ray {part}": "\n".join(cluster[part]) for part in cluster if part.endswith("_commands")}
    return found | {f"RUN {number}": line for number, line in enumerate(runs("docker/Dockerfile"))}


def test_every_script_is_one_for_its_shell():
    assert len(scripts()) > 10
    for name, script in scripts().items():
        found = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert found.stderr == "", name


TRAINER = (
    'echo "$1" >> calls; mkdir -p runs/words-1; '
    'if [ -n "$WAITS" ]; then trap "exit 4" TERM; while :; do sleep 0.01; done; fi; exit "$CODE"'
)
PASSES = {"srun": 'shift; exec "$@"', "scontrol": 'echo "$@" >> calls'}


def submitted(folder: Path, template: str, spotlight: str, **environment: str) -> tuple[int, list[str]]:
    """Run a batch script with this `spotlight`; returns its exit code, and the calls that the programs have noted."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").touch()
    programs = written_programs(folder / "programs", spotlight=spotlight, **PASSES)
    known = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "1",
        "PAUSE_S": "0",
    }
    started = subprocess.Popen(["bash", str(LAUNCH / template)], cwd=folder, env=known | environment)
    return started.wait(60), (folder / "calls").read_text().split("\n")[:-1]


@pytest.mark.parametrize("code", [0, 1, 2, 4])
def test_trainer_of_slurm_that_ends_by_itself_does_not_queue_again(tmp_path, code):
    """Also with 4: the run was drained, or has spent its budget."""
    assert submitted(tmp_path, "slurm/trainer.sbatch", TRAINER, CODE=str(code)) == (code, ["train"])


def test_trainer_of_slurm_resumes_a_run_that_is_there(tmp_path):
    (tmp_path / "runs" / "words-1").mkdir(parents=True)
    assert submitted(tmp_path, "slurm/trainer.sbatch", TRAINER, CODE="0") == (0, ["resume"])


def test_trainer_of_slurm_at_its_time_limit_ends_the_iteration_and_queues_again(tmp_path):
    signals = TRAINER.replace("while :", 'kill -USR1 "$PPID"; while :')
    assert submitted(tmp_path, "slurm/trainer.sbatch", signals, WAITS="yes") == (4, ["train", "requeue 7"])


JOINER = '[ "$1" = status ] && exec cat state; [ "$1" = token ] && exit 0; echo "$1" >> calls; '
"""A machine that has the run's token; the file `state` is the run's state."""
FINISHES = """echo '{"state":"finished","reason":null}' > state"""


def test_machine_of_slurm_that_was_preempted_queues_again(tmp_path):
    """Slurm has signalled the step: it leaves in order."""
    assert submitted(tmp_path, "slurm/spot.sbatch", f"{JOINER} exit 0") == (0, ["join", "requeue 7"])


def test_machine_of_slurm_whose_script_is_signalled_leaves_and_queues_again(tmp_path):
    leaves = f'{JOINER} trap "echo left >> calls; exit 0" TERM; kill -USR1 "$PPID"; while :; do sleep 0.01; done'
    _, calls = submitted(tmp_path, "slurm/spot.sbatch", leaves)
    assert calls == ["join", "left", "requeue 7"]


def test_machine_of_slurm_ends_with_the_run(tmp_path):
    assert submitted(tmp_path, "slurm/spot.sbatch", f"{JOINER} {FINISHES}; exit 0") == (0, ["join"])


@pytest.mark.parametrize("code", [1, 2])
def test_machine_of_slurm_that_cannot_join_does_not_queue_again(tmp_path, code):
    assert submitted(tmp_path, "slurm/spot.sbatch", f"{JOINER} exit {code}") == (code, ["join"])


def test_machine_of_slurm_waits_for_a_trainer_that_is_away_but_not_for_ever(tmp_path):
    returns = f"{JOINER} [ $(wc -l < calls) = 3 ] && {FINISHES} && exit 0; exit 4"
    assert submitted(tmp_path / "back", "slurm/spot.sbatch", returns) == (0, ["join"] * 3)
    never = submitted(tmp_path / "gone", "slurm/spot.sbatch", f"{JOINER} exit 3", TRIES="5")
    assert never == (3, ["join"] * 5)
    forgotten = JOINER.replace("exit 0;", "exec test ! -e calls;")
    assert submitted(tmp_path / "old", "slurm/spot.sbatch", f"{forgotten} exit 4", TRIES="5") == (3, ["join"])


def test_trainer_of_a_job_group_writes_its_token_and_resumes_and_its_machine_waits_for_it(tmp_path):
    _, trainer, spot = documents("skypilot/group.yaml")
    home = tmp_path / "home"
    (home / "spotlight" / "bin").mkdir(parents=True)
    (home / "spotlight" / "bin" / "activate").touch()
    notes = '[ "$1" = token ] && echo secret > token.json; echo "$@" >> calls; [ "$1" = train ] && mkdir -p runs/words-1; sleep 0.2'
    written_programs(home / "programs", spotlight=notes)
    (home / "spotlight" / "bin" / "spotlight").symlink_to(home / "programs" / "spotlight")
    known = {"HOME": str(home), "PATH": f"{home / 'programs'}:{os.environ['PATH']}", "SKYPILOT_JOBGROUP_NAME": "group"}
    machine = spot["run"].replace("/data", str(tmp_path)).replace("sleep 5", "sleep 0.01")
    joining = subprocess.Popen(["bash", "-c", machine], env=known | spot["envs"], cwd=home)
    script = trainer["run"].replace("cd /data", f"cd {tmp_path}")
    for _ in range(2):
        subprocess.run(["bash", "-c", script], env=known | trainer["envs"], check=True)
    assert joining.wait(60) == 0
    verbs = [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()]
    assert [verb for verb in verbs if verb != "token"] == ["train", "resume"]
    assert (home / "calls").read_text() == (
        f"join trainer-0.group:7700 --token-file {home}/token.json --name spot-1 --folder {home}/joined\n"
    )
    assert (home / "token.json").stat().st_mode & 0o777 == 0o600


def test_trainer_of_kubernetes_starts_the_run_and_resumes_it_in_the_next_pod(tmp_path):
    ((pod, _),) = pods("kubernetes/trainer.yaml")
    script = shell(pod.containers[0]).replace("cd /data", f"cd {tmp_path}")
    programs = written_programs(tmp_path / "programs", spotlight=TRAINER)
    known = {each.name: each.value for each in pod.containers[0].env}
    for _ in range(2):
        subprocess.run(["sh", "-c", script], env=known | {"PATH": f"{programs}:{os.environ['PATH']}", "CODE": "0"})
    assert (tmp_path / "calls").read_text().split() == ["train", "resume"]
