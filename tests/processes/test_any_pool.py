"""The same stories over every pool: machines die, leave, lose their network and return, and the weights stay the same.

By default two runs live through a handful of stories: in one a simulated node is killed and another one gets a notice;
in the other a machine that joined loses its network and is killed, as is a node of a Ray cluster. Both are compared
with one undisturbed run. The slow tests have all stories on simulated nodes, on a Ray cluster of four raylets, and on
machines that join. Machines are network namespaces where the system allows them, and dial through TCP relays elsewhere;
the property `network` of each test names which.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from command_line import spotlight
from live_run import LiveRun
from node_world import eventually, living
from pool_stories import (
    STORIES,
    cut_off_beyond_the_grace,
    kill,
    killed_in_mid_step,
    made,
    node_of,
    start,
    state_of,
    stop,
    warned_and_killed,
)
from pool_worlds import JoinWorld, LocalWorld, PoolWorld, RayAndJoinWorld, RayWorld, SmallLocalWorld

from spotlight.core.events import WorkerJoined
from spotlight.core.tls import IDENTITY
from spotlight.node.launch import AgentLaunch
from spotlight.pools.tokens import state_folder

pytestmark = pytest.mark.timeout(1200)
QUICK_S, GRACE_S = 6, 15
LONG_S = 800.0
"""Time for the undisturbed twin of a run of all stories."""
LISTENING = "0A"
"""State of a TCP socket in /proc/net/tcp."""


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    """All processes find the reward."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield


class Undisturbed:
    """The same run without spot nodes, as long as it is needed."""

    def __init__(self, folder: Path) -> None:
        self._run = made(folder / "undisturbed", GRACE_S, is_lent=True)
        self._is_begun = False

    def digests(self, steps: int) -> list[str]:
        """Digests of its weights after each of the first steps."""
        run = self._run
        if len(run.digests()) < steps:
            run.resume() if self._is_begun else run.start("--cluster.spot", "0")
            self._is_begun = True
            run.wait_for(lambda: len(run.digests()) >= steps, LONG_S)
            stop(run)
        return run.digests()[:steps]

    def close(self) -> None:
        self._run.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Iterator[Undisturbed]:
    plain = Undisturbed(tmp_path_factory.mktemp("plain"))
    yield plain
    plain.close()


WORLDS: dict[str, Callable[[], PoolWorld]] = {"local": LocalWorld, "ray": RayWorld, "join": JoinWorld}


@pytest.fixture(scope="module", params=WORLDS)
def live(request, tmp_path_factory) -> Iterator[tuple[PoolWorld, LiveRun]]:
    """A run with three machines, which lives through all stories."""
    with living_run(WORLDS[request.param](), tmp_path_factory.mktemp(request.param) / "run", GRACE_S) as found:
        yield found


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Iterator[tuple[PoolWorld, LiveRun]]:
    """A run with two simulated nodes, which lives through the stories of the default set."""
    with living_run(SmallLocalWorld(), tmp_path_factory.mktemp("small") / "run", QUICK_S) as found:
        yield found


@contextmanager
def living_run(world: PoolWorld, folder: Path, grace_s: int) -> Iterator[tuple[PoolWorld, LiveRun]]:
    run = made(folder, grace_s)
    try:
        start(world, run)
        for name in world.names[1:]:
            world.add(name)
        yield world, run
    finally:
        run.close()
        world.close()


def of_spotlight(mark: str) -> set[int]:
    """Processes of the run and of its machines."""
    found = set()
    for pid in living(mark):
        if b"\0spotlight." in proc(pid, "cmdline"):
            found.add(pid)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_story_on_any_pool_ends_with_a_clean_audit(live, story, record_property):
    world, run = live
    record_property("network", type(getattr(world, "network", world)).__name__)
    story(world, run)
    run.check()


@pytest.mark.slow
def test_run_of_all_stories_leaves_no_process_and_has_the_undisturbed_weights(live, undisturbed):
    end(*live)
    digests = live[1].digests()
    assert digests == undisturbed.digests(len(digests))


def end(world: PoolWorld, run: LiveRun) -> None:
    stop(run)
    run.wait_for(lambda: not of_spotlight(world.mark))
    run.check()


# -- two simulated nodes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("story", [killed_in_mid_step, warned_and_killed], ids=lambda story: story.__name__)
def test_story_on_two_simulated_nodes_ends_with_a_clean_audit(small, story):
    world, run = small
    story(world, run)
    run.check()


def test_run_on_two_simulated_nodes_leaves_no_process(small):
    end(*small)


# -- a Ray node and a machine that joined, in one run ------------------------------------------------------------------


class Seen:
    """What was seen of a run whose joined machine loses its network, and is killed as its Ray node is, in mid-step."""

    def __init__(self, folder: Path) -> None:
        world = self.world = RayAndJoinWorld()
        self.mark = world.mark
        self.run = made(folder / "both", QUICK_S)
        self.secrets: set[bytes] = set()
        try:
            start(world, self.run)
            self.machine = world.joining.machines["box-a"]
            self.observe(world)
            cut_off_beyond_the_grace(world, self.run, "box-a")
            self.renew(folder / "new.json")
            self.killed = kill(world, self.run, "box-a")
            self.left = living(self.mark) & self.of_machine
            kill(world, self.run, "ray-a")
            stop(self.run)
            # Logs of Ray, and what machines leave in the temporary folder.
            self.leaks_of_ray = leaks([world.cluster.folder], self.secrets)
        finally:
            self.run.close()
            world.close()

    def observe(self, world: RayAndJoinWorld) -> None:
        """Note secrets, arguments, ports and the status while both machines work."""
        for name in reversed(world.names):
            node_of(self.run, name)
        launch = (self.machine.private / "box-a.json").read_bytes()
        token = msgspec.json.decode(launch, type=AgentLaunch).token.encode()
        self.secrets |= {token, self.machine.token_file.token.encode()}
        self.secrets |= set((state_folder(self.run.run) / IDENTITY).read_bytes().splitlines()[1:3])
        processes = living(self.mark)
        self.arguments = b"".join(proc(pid, "cmdline") + proc(pid, "environ") for pid in processes)
        own = [pid for pid in of_spotlight(self.mark) if b"spotlight.pools.ray_driver" not in proc(pid, "cmdline")]
        # Ray listens everywhere, also in its driver.
        self.ports = {address for pid in own for address in listening_at(pid)}
        self.of_machine = {pid for pid in processes if str(self.machine.folder).encode() in os.fsencode(cwd(pid))}
        self.run.wait_for(lambda: state_of(self.run, "box-a.1") == "connected")
        self.status = self.run.status()
        self.shown = spotlight("status", self.run.run).out

    def renew(self, file: Path) -> None:
        """Revoke the token; the machines stay."""
        before = self.machine.token_file.token
        self.renewal = spotlight("token", self.run.run, "--new", "--out", file)
        self.secrets.add(self.machine.token_file.token.encode())
        self.is_revoked = before != self.machine.token_file.token


def leaks(places: list[Path], secrets: set[bytes]) -> list[tuple[Path, bytes]]:
    """Files with a secret in them."""
    files = [file for place in places for file in ([place] if place.is_file() else place.rglob("*")) if file.is_file()]
    return [(file, secret) for file in files for secret in secrets if secret in file.read_bytes()]


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
    """Addresses at which a process listens."""
    held = set()
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            held.add(os.readlink(file))
        except OSError:
            continue
    for line in proc(pid, "net/tcp").decode().splitlines()[1:] + proc(pid, "net/tcp6").decode().splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTENING and f"socket:[{fields[9]}]" in held:
            address = bytes.fromhex(fields[1].partition(":")[0])
            yield ".".join(map(str, reversed(address))) if len(address) == 4 else address.hex()


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> Seen:
    return Seen(tmp_path_factory.mktemp("seen"))


def test_run_whose_machine_is_cut_off_and_killed_and_whose_ray_node_is_killed_has_a_clean_audit(seen, record_property):
    record_property("network", type(seen.world.network).__name__)
    seen.run.check()


def test_killed_machines_leave_no_process(seen):
    assert seen.of_machine != set()
    assert seen.left == set()
    # The run that this one was compared with has just ended too.
    asyncio.run(eventually(lambda: not living(seen.mark), "all processes are gone"))


def test_secrets_are_in_no_argument_environment_log_or_file_of_the_run(seen):
    assert len(seen.secrets) >= 4
    for secret in seen.secrets:
        assert secret not in seen.arguments
    assert (seen.run.run / "report.html").exists()
    places = [seen.run.folder, seen.machine.folder / "joined", seen.machine.folder / "join.log"]
    assert leaks(places, seen.secrets) + seen.leaks_of_ray == []


def test_every_port_is_of_the_loopback_device_or_of_the_address_that_was_asked_for(seen):
    machines = {each["place"] for each in seen.status["machines"]}
    assert {seen.world.network.host} <= seen.ports <= {"127.0.0.1", seen.world.network.host, *machines}


def test_status_names_the_machines_with_place_class_slots_and_state(seen):
    found = {each["node"]: each for each in seen.status["machines"]}
    assert found.keys() == {"box-a.1", "ray-a.1", "reserved-1.1"}
    assert {node for node, each in found.items() if each["place"]} == {"box-a.1", "ray-a.1"}
    box = found["box-a.1"]
    assert (box["slot_class"], box["slots"], box["state"]) == ("spot", 1, "connected")
    assert f"box-a.1  1 spot slot  at {box['place']}: connected" in seen.shown


def test_token_of_a_live_run_is_revoked_and_its_machines_stay(seen):
    assert seen.renewal.code == 0, seen.renewal.err
    assert "revoked" in seen.renewal.out
    assert seen.is_revoked
    joined = [event.worker for event in seen.run.events(WorkerJoined) if event.node == seen.killed]
    assert (seen.killed, len(joined)) == ("box-a.2", 1)


def test_machine_shows_what_it_does_in_plain_lines(seen):
    log = seen.machine.log()
    for line in ("joining the run run at ", "joined as box-a.1: 1 slot on cpu", "joined as box-a.2"):
        assert line in log
    assert not re.search("Traceback|Exception", log)


# -- both --------------------------------------------------------------------------------------------------------------


def test_weights_of_both_runs_are_the_undisturbed_runs_to_the_last_bit(small, seen, undisturbed):
    digests = [run.digests() for run in (small[1], seen.run)]
    # Once for the longer one.
    plain = undisturbed.digests(max(map(len, digests)))
    assert all(digests)
    assert digests == [plain[: len(each)] for each in digests]
