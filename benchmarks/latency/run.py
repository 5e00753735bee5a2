"""Runs with machines behind a slow link and on the loopback device, in turn; their journals, and a file's time."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.lib.figures import Figure
from benchmarks.lib.namespaces import namespace
from spotlight.control.ledger.audit import audit
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.events import Accepted, IterationDone, Record
from spotlight.core.journal import read
from spotlight.pools.tokens import token_file_of

RECIPE = "words-large-nft"
SETTINGS = (
    "iterations=10000", "cluster.pool=join", "cluster.spot=2", "cluster.reserved=1", "cluster.rows=8",
    "cluster.pace=h200-qwen-image-512", "cluster.notices.sources=off", "eval.every=10000", "eval.prompts=2",
    "eval.steps=2", "explore.enabled=off", "rollout.prompts=16", "rollout.group_size=8", "rollout.steps=20",
    "algorithm.timesteps_per_sample=1", "reward.processes=1", "output.name=run", "output.journal.sync=never",
)  # fmt: skip
MACHINES = ("box-1", "box-2")
NEAR, FAR = "198.18.255.1", "198.18.255.2"
LOOPBACK = "127.0.0.1"
START_S, ITERATION_S, POLL_S = 300.0, 120.0, 0.5
CLI = (sys.executable, "-m", "spotlight.surface.cli.main")


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    iterations: int
    ms: float
    loss: float
    mbit: float
    megabytes: int
    control: str


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    samples_per_s: float
    """Samples of the run, over whole iterations."""
    machines_per_s: float
    """Those of the two machines among them, per second of rollouts."""
    file_s: float


class Round(msgspec.Struct, frozen=True, kw_only=True):
    loopback: Condition
    link: Condition


def measure(setup: Setup, rounds: int) -> tuple[str, list[Round]]:
    """The congestion control of both ends, and the rounds."""
    made = []
    for number in range(rounds):
        with ExitStack() as stack:
            try:
                ends = [stack.enter_context(namespace(name)) for name in ("run", "spot")]
                stack.enter_context(_link(setup, ends, number))
            except OSError as error:
                raise EnvironmentProblem(
                    f"no link between network namespaces can be made here ({error}); run the benchmark as root on a "
                    "Linux with iproute2 and /dev/net/tun."
                ) from error
            control = [_control(end, setup.control) for end in ends]
            found = {}
            # Alternated, so that a drift of the machine's speed is not that of the link.
            for is_near in (True, False) if number % 2 == 0 else (False, True):
                found[is_near] = _condition(setup, ends[0], ends[0] if is_near else ends[1], is_near)
            made.append(Round(loopback=found[True], link=found[False]))
            print(f"round {number + 1} of {rounds}: {made[-1]}", file=sys.stderr, flush=True)
    return " and ".join(sorted(set(control))), made


def figures_of(rounds: Sequence[Round]) -> dict[str, Figure]:
    units = {
        "samples_per_s": "samples of the run per s",
        "machines_per_s": "samples of the two machines per s of rollouts",
        "file_s": "s to fetch the file",
    }
    figures = {
        "throughput_share": Figure.median(
            [one.link.samples_per_s / one.loopback.samples_per_s for one in rounds],
            "throughput of the run, as a share of that over the loopback device",
        ),
        "machines_share": Figure.median(
            [one.link.machines_per_s / one.loopback.machines_per_s for one in rounds],
            "rollouts of the machines per s, as a share of those over the loopback device",
        ),
    }
    for name, unit in units.items():
        for place in ("link", "loopback"):
            figures[f"{place}_{name}"] = Figure.median([getattr(getattr(one, place), name) for one in rounds], unit)
    return figures


def _condition(setup: Setup, run_in: Sequence[str], machines_in: Sequence[str], is_near: bool) -> Condition:
    host = LOOPBACK if is_near else NEAR
    with TemporaryDirectory(prefix="latency-") as name:
        folder = Path(name)
        all_s, machines_s = _throughput(setup, folder, host, run_in, machines_in)
        file_s = _file_s(setup, folder, host, run_in, machines_in)
        return Condition(samples_per_s=all_s, machines_per_s=machines_s, file_s=file_s)


def _throughput(
    setup: Setup, folder: Path, host: str, run_in: Sequence[str], machines_in: Sequence[str]
) -> tuple[float, float]:
    """Samples per second of the run, and of the machines while it rolls out."""
    settings = (*SETTINGS, f"cluster.listen={host}:0")
    command = [*run_in, *CLI, "train", RECIPE, *(part for one in settings for part in ("--set", one))]
    run, journal = folder / "runs" / "run", folder / "runs" / "run" / "journal"
    limit_s = START_S + ITERATION_S * setup.iterations
    with _running(command, folder, "run.log") as process, ExitStack() as machines:
        token = folder / "token.json"
        _until(process, lambda: _is_written(run, token), "the run does not listen")
        for name in MACHINES:
            joining = ["join", "--token-file", str(token), "--name", name]
            machines.enter_context(_running([*machines_in, *CLI, *joining], folder, f"{name}.log"))
        _until(process, lambda: bool(measured(_records(journal), setup.iterations)), "too few iterations", limit_s)
        records = measured(_records(journal), setup.iterations)
    found = audit(read(journal))
    if not found.clean:
        raise SystemExit("the run is not clean:\n" + "\n".join(found.sentences()))
    done = [record.event for record in records if isinstance(record.event, IterationDone)]
    accepted = [record.event for record in records if isinstance(record.event, Accepted)]
    by_machines = sum(event.worker.startswith(MACHINES) for event in accepted)
    return len(accepted) / (records[-1].at - records[0].at), by_machines / sum(one.rollout_s for one in done)


def measured(records: Sequence[Record], iterations: int) -> list[Record]:
    """Records of this many whole iterations, from the end of the first in which both machines worked; empty if there
    are not so many yet."""
    seen: set[str] = set()
    ends: list[int] = []
    for place, record in enumerate(records):
        match record.event:
            case Accepted(worker=worker) if worker.startswith(MACHINES):
                seen.add(worker.partition(".")[0])
            case IterationDone() if len(seen) == len(MACHINES):
                ends.append(place)
    return list(records[ends[0] : ends[iterations] + 1][1:]) if len(ends) > iterations else []


def _is_written(run: Path, token: Path) -> bool:
    """Copy the token file once the run listens."""
    try:
        file = token_file_of(run)
    except Exception:
        return False
    if not file.address:
        return False
    file.write(token)
    return True


def _records(journal: Path) -> list[Record]:
    return list(read(journal)) if journal.is_dir() else []


def _file_s(setup: Setup, folder: Path, host: str, run_in: Sequence[str], machines_in: Sequence[str]) -> float:
    """Seconds in which a machine fetches a file from the run's blob server, without other traffic."""
    from benchmarks.bandwidth.run import PATH

    (folder / "run" / "weights").mkdir(parents=True)
    (folder / "run" / PATH).write_bytes(os.urandom(setup.megabytes * 1_000_000))
    node = [sys.executable, "-m", "benchmarks.bandwidth.node"]
    hosts = {"home": host, "spot": host if host == LOOPBACK else FAR}
    places = {"home": run_in, "spot": machines_in}
    with ExitStack() as stack:
        started = {}
        for name, place in places.items():
            command = [*place, *node, name, str(folder), "1e6", hosts[name]]
            started[name] = stack.enter_context(_talking(command))
        home = json.loads(_line(started["home"]))
        _line(started["spot"])
        began = time.monotonic()
        _order(started["spot"], {"home": home, "sources": []})
        _line(started["spot"])
        return time.monotonic() - began


def _control(end: Sequence[str], control: str) -> str:
    """Set the congestion control of a namespace, if one is wanted; returns which it has."""
    path = "/proc/sys/net/ipv4/tcp_congestion_control"
    script = f"echo {control} > {path}; " if control else ""
    done = subprocess.run([*end, "sh", "-c", f"{script}cat {path}"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextmanager
def _link(setup: Setup, ends: Sequence[Sequence[str]], seed: int) -> Iterator[None]:
    places = (ends[0][-1], NEAR, ends[1][-1], FAR)
    shape = (str(setup.ms), str(setup.loss), str(setup.mbit), str(seed))
    with _talking([sys.executable, "-m", "benchmarks.latency.link", *places, *shape]) as process:
        if _line(process) != "up":
            raise OSError("the link's process ended")
        yield


@contextmanager
def _talking(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process with pipes, which is killed at the end."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _order(process: subprocess.Popen[str], order: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()


@contextmanager
def _running(command: Sequence[str], folder: Path, log_name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is stopped by two signals at the end."""
    log_file = folder / log_name
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
    try:
        yield process
    except BaseException:
        sys.stderr.write(f"{log_name}:\n{log_file.read_text(errors='replace')[-3000:]}\n")
        raise
    finally:
        # The second signal stops a run in the middle of its iteration, and a machine without a hand-over.
        for _ in range(2):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                time.sleep(1.0)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until(process: subprocess.Popen[bytes], is_so: Callable[[], bool], problem: str, limit_s: float = START_S) -> None:
    deadline = time.monotonic() + limit_s
    while not is_so():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{problem} in {limit_s:g} s, or the run has ended")
        time.sleep(POLL_S)
