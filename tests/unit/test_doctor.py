"""`spotlight doctor`: what is wrong with a machine, how to mend it, and the exit code that scripts read."""

import json
import socket
from pathlib import Path

import pytest
from command_line import spotlight
from fake_gpus import GIB, fake_gpus

from spotlight.core.errors import EnvironmentProblem
from spotlight.pools.devices import Device, Devices
from spotlight.preflight.machine_state import Examined, Health, MachineFacts, examine

ROOMY = (100 * GIB, 0, 100 * GIB)
TWO_GPUS = tuple(Device(f"cuda:{number}", "Fake", 70 * GIB, 80 * GIB) for number in range(2))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)


def found(tmp_path, **changes) -> dict[str, Examined]:
    """Findings by subject, of a sound machine with some changes."""
    sound = {
        "runs": tmp_path / "runs", "usage": lambda place: ROOMY, "has_driver": lambda: False,
        "devices": lambda: Devices(torch="2.99.0"),
    }  # fmt: skip
    return {finding.subject: finding for finding in examine(MachineFacts(**(sound | changes)))}


def test_sound_machine_has_no_problem(tmp_path):
    findings = found(tmp_path)
    assert all(finding.state is not Health.PROBLEM for finding in findings.values())
    assert not [finding for finding in findings.values() if finding.state is Health.OK and "install" in finding.mend]
    assert findings["torch"].found == "2.99.0, a build without CUDA"
    assert not (tmp_path / "runs").exists()


def test_small_shared_memory_is_a_warning_with_the_option_that_enlarges_it(tmp_path):
    shared = tmp_path / "shm"
    shared.mkdir()
    usage = lambda place: (64 * 2**20, 2**20, 63 * 2**20) if place == shared else ROOMY  # noqa: E731
    finding = found(tmp_path, shared_memory=shared, usage=usage)["shared memory"]
    assert finding.state is Health.WARNING
    assert finding.found == f"0.00 of 0.06 GiB used in {shared}"
    assert "docker run --shm-size=8g" in finding.mend
    absent = found(tmp_path, shared_memory=tmp_path / "nowhere")["shared memory"]
    assert absent.state is Health.WARNING
    assert "mount a tmpfs" in absent.mend


def test_folder_without_write_rights_is_a_problem(tmp_path):
    finding = found(tmp_path, runs=Path("/proc/spotlight"))["run folder"]
    assert finding.state is Health.PROBLEM
    assert "/proc takes no files" in finding.found
    assert "set output.folder" in finding.mend


def test_full_disk_is_a_problem_and_a_small_one_a_warning(tmp_path):
    states = [
        found(tmp_path, usage=lambda place, free=free: (10**12, 0, free))["disk"].state
        for free in (10**8, 10**10, 10**11)
    ]
    assert states == [Health.PROBLEM, Health.WARNING, Health.OK]


def test_taken_port_is_a_problem(tmp_path):
    assert found(tmp_path)["loopback"].state is Health.OK
    with socket.socket(socket.AF_INET) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        finding = found(tmp_path, port=port)["loopback"]
    assert finding.state is Health.PROBLEM
    assert f"port {port} of 127.0.0.1 cannot be bound (Address already in use)" in finding.found


def test_gpus_are_listed_with_their_memory_and_busy_ones_are_marked(tmp_path):
    busy = Device("cuda:1", "Fake", 20 * GIB, 80 * GIB)
    devices = lambda: Devices(torch="2.99", cuda="99.9", nccl="2.30", devices=(TWO_GPUS[0], busy))  # noqa: E731
    findings = found(tmp_path, devices=devices, has_driver=lambda: True)
    assert findings["torch"].found == "2.99, CUDA runtime 99.9"
    assert findings["cuda:0"] == Examined("cuda:0", Health.OK, "Fake, 70.0 of 80.0 GiB free")
    assert findings["cuda:1"].state is Health.WARNING
    assert "see nvidia-smi" in findings["cuda:1"].mend
    assert findings["nccl"].found == "2.30"


def test_several_gpus_without_nccl_are_a_warning(tmp_path):
    devices = lambda: Devices(torch="2.99", cuda="99.9", devices=TWO_GPUS)  # noqa: E731
    assert found(tmp_path, devices=devices, has_driver=lambda: True)["nccl"].state is Health.WARNING


@pytest.mark.parametrize(
    ("devices", "visible", "subject", "state", "mend"),
    [
        (Devices(torch="2.99"), None, "torch", Health.WARNING, "install a CUDA build of torch"),
        (
            Devices(torch="2.99", cuda="13", warnings=("too old",)),
            None,
            "driver",
            Health.PROBLEM,
            "Update the driver",
        ),
        (Devices(torch="2.99", cuda="13"), "7", "driver", Health.PROBLEM, "CUDA_VISIBLE_DEVICES is '7'"),
    ],
)
def test_gpu_that_torch_cannot_use_says_how_to_mend_it(tmp_path, monkeypatch, devices, visible, subject, state, mend):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    finding = found(tmp_path, devices=lambda: devices, has_driver=lambda: True)[subject]
    assert finding.state is state
    assert mend in finding.mend


def test_torch_that_cannot_be_imported_is_a_problem(tmp_path):
    def broken() -> Devices:
        raise EnvironmentProblem("torch's devices cannot be listed (ImportError: torch); see what")

    assert found(tmp_path, devices=broken)["torch"].found == "torch's devices cannot be listed (ImportError: torch)"


def test_command_ends_with_0_on_a_sound_machine_and_prints_json(tmp_path):
    outcome = spotlight("doctor", "--json")
    assert outcome.code == 0, outcome.out
    printed = json.loads(outcome.out)
    assert {"python", "torch", "cores", "memory", "disk", "loopback"} <= {
        each["subject"] for each in printed["findings"]
    }
    assert printed["memory"] == {}
    assert not list(tmp_path.iterdir())


def test_command_ends_with_3_where_a_run_would_fail():
    outcome = spotlight("doctor", "--runs", "/proc/spotlight")
    assert outcome.code == 3
    assert "problem  run folder" in outcome.out


def test_recipe_adds_its_memory_plan_and_its_disk_space():
    outcome = spotlight("doctor", "words-nft", "--json")
    assert outcome.code == 0, outcome.out
    printed = json.loads(outcome.out)
    states = {each["subject"]: each["state"] for each in printed["findings"]}
    assert states["memory plan"] == states["disk of the run"] == "ok"
    assert printed["memory"]["training rank"]["total"] > printed["memory"]["rollout worker"]["total"]


def test_recipe_that_does_not_fit_a_gpu_is_a_problem_with_a_way_out():
    settings = ("model.name=random:qwen-image", "model.device=cuda", "reward.name=jpeg", "cluster.rows=4")
    with fake_gpus(2, free=30.0, total=32.0):
        outcome = spotlight("doctor", "qwen-image-ocr-512", *(part for each in settings for part in ("--set", each)))
    assert outcome.code == 3
    assert "problem  memory plan" in outcome.out
    assert "GiB are missing" in outcome.out
    assert "It would fit with train.parallel=sharded with pipeline.tag=false over" in outcome.out
