"""Commands that the documents show, the test that runs each, and why the others cannot be run."""

import re
import shlex
from enum import StrEnum

from document_commands import ROOT, commands_in, required_of

DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("src/spotlight/assets/*/README.md"),
        *ROOT.glob("assets/**/README.md"),
    )
)
SHOWN = sorted({command for document in DOCUMENTS for command in commands_in((ROOT / document).read_text())})

NOT_RUN = {
    "docker": "needs Docker; tests/unit/test_launch_images.py runs the steps of the images",
    "kubectl": "needs a Kubernetes cluster; tests/unit/test_launch_templates.py checks the templates",
    "sbatch": "needs Slurm; tests/unit/test_launch_scripts.py runs the scripts with stand-ins",
    "ray": "starts daemons on fixed ports; tests/processes/test_ray_pool.py uses a cluster of its own",
    "pip": "installs packages from the network; problems_with looks the extras up",
    "nc": "needs a run on another machine",
    "chmod": "a mode without a file, in a table of errors",
    ".": "changes the reader's shell; the Makefile makes the file",
    ".venv/bin/python": "is this test suite; tests/unit/test_documents.py checks that the file exists",
}
"""Programs whose commands no test runs, each with the reason."""
_RUNS = "tests/unit/test_document_runs.py::"
_STORIES = "tests/processes/test_document_stories.py::"


class Runner(StrEnum):
    """The test that runs a command."""

    BENCHMARK = f"{_RUNS}test_flags_of_a_shown_benchmark_are_parsed"
    COMPARISON = f"{_RUNS}test_a_shown_comparison_runs"
    COMPLETION = f"{_RUNS}test_shown_completion_is_installed"
    DRY_RUN = f"{_RUNS}test_a_shown_train_command_passes_its_checks"
    EVALUATION = f"{_RUNS}test_a_shown_evaluation_scores"
    JOINING = f"{_STORIES}test_shown_commands_let_a_machine_join_a_run"
    LIVE = f"{_STORIES}test_shown_commands_train_drill_drain_resume_export_and_draw"
    LOOK = f"{_RUNS}test_every_shown_command_that_looks_at_this_machine_works"
    MAKE = f"{_RUNS}test_a_shown_target_can_be_made"
    MEASUREMENT = f"{_RUNS}test_a_shown_profile_is_measured"
    NAME = f"{_RUNS}test_a_verb_that_is_only_named_asks_for_what_it_lacks"
    PAGE = f"{_RUNS}test_a_shown_dashboard_serves_its_page"
    PRETRAINING = f"{_RUNS}test_a_shown_pretraining_makes_weights"
    READER = f"{_RUNS}test_every_shown_command_that_reads_a_run_works_on_a_recorded_one"
    SHELL = f"{_RUNS}test_a_shown_line_of_the_shell_writes_its_file"
    SIMULATION = f"{_RUNS}test_a_shown_simulation_runs"


RUNNERS = {
    **dict.fromkeys(("status", "report", "audit", "list", "logs", "clean", "watch"), Runner.READER),
    **dict.fromkeys(("doctor", "rewards", "--help"), Runner.LOOK),
    **dict.fromkeys(("drill", "drain", "resume", "export", "sample"), Runner.LIVE),
    **dict.fromkeys(("token", "join"), Runner.JOINING),
    **dict.fromkeys(("sim", "plan"), Runner.SIMULATION),
    "--install-completion": Runner.COMPLETION,
    "compare": Runner.COMPARISON,
    "dashboard": Runner.PAGE,
    "evaluate": Runner.EVALUATION,
    "pretrain": Runner.PRETRAINING,
    "profile": Runner.MEASUREMENT,
    "train": Runner.DRY_RUN,
}
"""By the first word after `spotlight`."""


def runner_of(command: str) -> Runner | None:
    """The test that runs a command; None if none does."""
    if command.startswith(("printf ", "python -c ")):
        return Runner.SHELL
    if command.startswith("python -m benchmarks."):
        return Runner.BENCHMARK
    program, *call = words_of(command)
    if program == "make":
        return Runner.MAKE
    if program != "spotlight" or not call:
        return None
    if all(word.startswith("--") for word in call[1:]) and required_of(call[0]):
        return Runner.NAME
    return RUNNERS.get(call[0])


def words_of(command: str) -> list[str]:
    """Without the brackets around what may be left out."""
    return shlex.split(re.sub(r"\[([A-Z]+|--[^\[\]]+)\]", r"\1", command))


def run_by(runner: Runner) -> list[list[str]]:
    """Words after the program of each command that the test runs."""
    return [words_of(command)[1:] for command in SHOWN if runner_of(command) is runner]


def filled(call: list[str], **values: object) -> list[str]:
    """The call with a value for each placeholder: a word in capitals, alone or after an equals sign."""
    for number, word in enumerate(call):
        before, equals, last = word.rpartition("=")
        if re.fullmatch("[A-Z]+", last):
            assert last in values, f"no value for {last} in {' '.join(call)}"
            call = [*call[:number], f"{before}{equals}{values[last]}", *call[number + 1 :]]
    return call
