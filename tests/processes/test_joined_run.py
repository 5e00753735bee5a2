"""A run whose spot node is another machine: it is killed without a word, and the weights are those of a quiet run.

The machine has folders of its own: it stores and reads everything through the run's blob server.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from command_line import spotlight
from joined_machine import JoinedMachine
from live_run import RECIPE, LiveRun
from node_world import living, marked

from spotlight.core.events import Accepted, Leased, NodeLost, Released, WorkerJoined
from spotlight.core.tls import IDENTITY
from spotlight.core.work import ReleaseReason
from spotlight.node.launch import AgentLaunch
from spotlight.pools.tokens import state_folder

JOINED = RECIPE.replace("spot: 2", "spot: 1, grace_s: 5, pool: join, listen: '127.0.0.1:0'")
LISTENING = "0A"
"""State of a TCP socket in /proc/net/tcp."""


class Story:
    """What was seen of a run with a machine that is killed while it works."""

    def __init__(self, folder: Path) -> None:
        self.mark = marked()
        (folder / "joined").mkdir()
        self.run = LiveRun(folder / "joined", JOINED.format(iterations=5))
        self.machine = JoinedMachine(self.run)
        self.secrets: set[bytes] = set()
        try:
            self.run.start()
            self.machine.join()
            self.observe_work()
            before = self.machine.token_file.token
            self.renewal = spotlight("token", self.run.run, "--new", "--out", folder / "new.json")
            self.secrets.add(self.machine.token_file.token.encode())
            self.is_revoked = before != self.machine.token_file.token
            self.held_after_renewal = self.run.wait_for(self.held)
            self.machine.kill()
            self.run.wait_for_event(NodeLost, lambda event: event.node == "box.1")
            self.left = living(self.mark) & self.of_machine
            self.code = self.run.finish()
        finally:
            self.machine.close()
            self.run.close()

    def held(self) -> set[str]:
        """Samples that the machine works on."""
        leased = {event.request for event in self.run.events(Leased) if event.worker.startswith("box.1/")}
        return leased - {event.request for kind in (Accepted, Released) for event in self.run.events(kind)}

    def observe_work(self) -> None:
        """Wait until the machine works on a sample; note secrets, arguments and ports while it does."""
        self.run.wait_for_event(Leased, lambda event: event.worker.startswith("box.1/"))
        launch = (self.machine.private / "box.json").read_bytes()
        self.secrets |= {token_of(launch), self.machine.token_file.token.encode()}
        self.secrets |= set((state_folder(self.run.run) / IDENTITY).read_bytes().splitlines()[1:3])
        processes = living(self.mark)
        self.arguments = b"".join(proc(pid, "cmdline") + proc(pid, "environ") for pid in processes)
        self.ports = {address for pid in processes for address in listening_at(pid)}
        self.of_machine = {pid for pid in processes if str(self.machine.folder).encode() in os.fsencode(cwd(pid))}


def token_of(launch: bytes) -> bytes:
    return msgspec.json.decode(launch, type=AgentLaunch).token.encode()


def proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def cwd(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def listening_at(pid: int) -> Iterator[str]:
    """Addresses, in the kernel's hexadecimal, at which a process listens."""
    held = set()
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            held.add(os.readlink(file))
        except OSError:
            continue
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in held:
                yield fields[1].partition(":")[0]


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Story:
    return Story(tmp_path_factory.mktemp("story"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> LiveRun:
    """The same run with a local spot node and without losses."""
    run = LiveRun(tmp_path_factory.mktemp("plain"), RECIPE.replace("spot: 2", "spot: 1").format(iterations=5))
    try:
        run.start()
        assert run.finish() == 0, run.log()
    finally:
        run.close()
    return run


def test_run_with_a_machine_killed_while_it_works_is_the_undisturbed_run_to_the_last_bit(story, plain):
    assert story.code == 0, story.run.log() + story.machine.log()
    story.run.check()
    assert story.run.theta() == plain.theta()
    held = {event.request for event in story.run.events(Leased) if event.worker.startswith("box.1/")}
    released = {event.request for event in story.run.events(Released) if event.reason is ReleaseReason.LOST}
    assert held & released, "the machine was killed while it held samples"


def test_killed_machine_leaves_no_process(story):
    assert story.of_machine != set()
    assert story.left == set()
    assert living(story.mark) == set()


def test_secrets_are_in_no_argument_environment_log_or_file_of_the_run(story):
    assert len(story.secrets) >= 4
    for secret in story.secrets:
        assert secret not in story.arguments
    places = [story.run.folder, story.machine.folder / "joined", story.machine.folder / "join.log"]
    files = [file for place in places for file in ([place] if place.is_file() else place.rglob("*")) if file.is_file()]
    assert any(file.name == "report.html" for file in files)
    leaks = [(file.name, secret) for file in files for secret in story.secrets if secret in file.read_bytes()]
    assert leaks == []


def test_every_port_of_the_run_is_of_the_loopback_device(story):
    assert story.ports == {"0100007F"}


def test_token_of_a_live_run_is_revoked_and_its_machine_stays(story):
    assert story.renewal.code == 0, story.renewal.err
    assert "revoked" in story.renewal.out
    assert story.is_revoked
    assert story.held_after_renewal


def test_machine_shows_what_it_does_in_plain_lines(story):
    log = story.machine.log()
    for line in ("joining the run run at 127.0.0.1:", "joined as box.1: 1 slot on cpu"):
        assert line in log
    assert not re.search("Traceback|Exception", log)


@pytest.mark.slow
def test_machine_joins_a_resumed_run_with_the_token_file_that_it_has(tmp_path):
    (tmp_path / "run").mkdir()
    # A fixed port, as users have one: the machine does not learn another.
    recipe = JOINED.replace("127.0.0.1:0", "127.0.0.1:27941")
    run = LiveRun(tmp_path / "run", recipe.format(iterations=5))
    machine = JoinedMachine(run)
    try:
        run.start()
        machine.join()
        run.wait_for_event(Leased, lambda event: event.worker.startswith("box.1/"))
        before = machine.token_file
        run.kill_controller()
        assert machine.finish() == 4, machine.log()
        run.resume()
        machine.join()
        assert machine.token_file == before
        run.wait_for_event(WorkerJoined, lambda event: event.node == "box.2")
        assert (run.finish(), machine.finish()) == (0, 0), run.log() + machine.log()
        assert "leaves: the run is done." in machine.log()
    finally:
        machine.close()
        run.close()
    run.check()


@pytest.mark.slow
def test_machine_that_is_asked_to_stop_hands_back_its_samples_and_leaves(tmp_path):
    (tmp_path / "run").mkdir()
    run = LiveRun(tmp_path / "run", JOINED.format(iterations=5))
    machine = JoinedMachine(run)
    try:
        run.start()
        machine.join()
        run.wait_for_event(Leased, lambda event: event.worker.startswith("box.1/"))
        machine.interrupt()
        assert machine.finish() == 0, machine.log()
        lost = run.wait_for_event(NodeLost, lambda event: event.node == "box.1")
        assert "for 5 s" not in lost.cause, "it was waited for, though it had reported its end"
        assert run.finish() == 0, run.log()
    finally:
        machine.close()
        run.close()
    run.check()
