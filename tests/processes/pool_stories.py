"""Stories of a run's machines, for every pool: they die, leave, lose their network and return."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from live_run import LiveRun
from pool_worlds import JoinWorld, PoolWorld, agent_of, notices_of
from unhurried_reward import PAUSE

from spotlight.core.events import Accepted, NodeJoined, NodeLost, NoticeGiven, Released, WorkerJoined, WorkerLost
from spotlight.core.work import ReleaseReason
from spotlight.presence import read_beat

RECIPE = """
extends: words-nft
deterministic: true
iterations: 1000
rollout: {{prompts: 2, group_size: 4, steps: 10}}
algorithm: {{timesteps_per_sample: 1}}
train: {{micro_batch: 4, updates_per_iteration: 1}}
explore: {{plan: fixed, seeds: 6, steps: 2, audit_share: 0.5}}
eval: {{every: 10000, prompts: 4, steps: 2}}
cluster: {{reserved: 1, rows: 4, commit_every: 1, heartbeat_s: 0.2, grace_s: {grace_s}, notices: {notices}}}
reward: {{name: 'unhurried_reward:Unhurried', processes: 1}}
output: {{name: run, checkpoint_every: 20, journal: {{sync: never}}}}
"""
NOTICE_S, SCORED_S = 10.0, 1.0


def made(folder: Path, grace_s: int, is_lent: bool = False) -> LiveRun:
    folder.mkdir()
    return LiveRun(folder, RECIPE.format(grace_s=grace_s, notices=notices_of(folder)), is_lent=is_lent)


def start(world: PoolWorld, run: LiveRun) -> None:
    """Start a run that leaves time for machines to come and go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PAUSE, "2.5")
        world.start(run)


def stop(run: LiveRun) -> None:
    """Let the run finish its iteration."""
    run.interrupt()
    assert run.finish() == 4, run.log()


def node_of(run: LiveRun, name: str) -> str:
    """The machine's node, once it works on a sample."""

    def working() -> str | None:
        nodes = [event.node for event in run.events(NodeJoined) if event.node.rpartition(".")[0] == name]
        return nodes[-1] if nodes and run.held(nodes[-1]) else None

    return str(run.wait_for(working))


@contextmanager
def in_mid_step(run: LiveRun, name: str) -> Iterator[str]:
    """The machine's node, whose worker stands still with samples in hand."""
    while True:
        node = node_of(run, name)
        pid = next(event.pid for event in reversed(run.events(WorkerJoined)) if event.node == node)
        os.kill(pid, signal.SIGSTOP)
        # What the worker had finished is still scored and sent.
        scored = time.monotonic() + SCORED_S
        run.wait_for(lambda scored=scored, node=node: time.monotonic() > scored or not run.held(node))
        if run.held(node):
            break
        os.kill(pid, signal.SIGCONT)
    try:
        yield node
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def await_return(run: LiveRun, node: str) -> str:
    """Wait until the machine of a lost node has finished a sample as its next incarnation."""
    name, _, number = node.rpartition(".")
    returned = f"{name}.{int(number) + 1}"
    run.wait_for_event(Accepted, lambda event: event.worker.startswith(f"{returned}/"))
    return returned


def await_loss(run: LiveRun, node: str) -> NodeLost:
    return run.wait_for_event(NodeLost, lambda event: event.node == node)  # type: ignore[return-value]


def losses(run: LiveRun, since: int) -> list[Released]:
    """Samples that were lost without a hand-over, after this many records."""
    events = [record.event for record in run.records()[since:]]
    lost = (ReleaseReason.LOST, ReleaseReason.SILENT)
    return [each for each in events if isinstance(each, Released) and each.reason in lost]


# -- stories -----------------------------------------------------------------------------------------------------------


def killed_in_mid_step(world: PoolWorld, run: LiveRun) -> None:
    node = kill(world, run, world.names[0])
    world.add(world.names[0])
    await_return(run, node)


def kill(world: PoolWorld, run: LiveRun, name: str) -> str:
    with in_mid_step(run, name) as node:
        held, since = run.held(node), len(run.records())
        world.kill(name)
        lost = await_loss(run, node)
    assert lost.cause.startswith(world.lost if name == world.names[0] else JoinWorld.lost), lost.cause
    check_lost(run, node, held, since)
    return node


def check_lost(run: LiveRun, node: str, held: set[str], since: int) -> None:
    """Samples were lost in mid-step, and of those that the node held none was forgotten."""
    lost = {each.request for each in losses(run, since)}
    events = [record.event for record in run.records()[since:]]
    # Finished before the loss, with a result on its way.
    accepted = {each.request for each in events if isinstance(each, Accepted) and each.worker.startswith(f"{node}/")}
    assert held & lost
    assert held <= lost | accepted


def warned_and_killed(world: PoolWorld, run: LiveRun) -> None:
    """What a machine holds at its notice is finished or handed over before the deadline."""
    name = world.names[1]
    node, since = node_of(run, name), len(run.records())
    world.warn(name, NOTICE_S)
    seen = run.wait_for_event(NoticeGiven, lambda event: event.worker.startswith(f"{node}/"))
    deadline = time.monotonic() + seen.seconds
    assert 0 < seen.seconds <= NOTICE_S
    run.wait_for(lambda: time.monotonic() > deadline)
    assert not run.held(node)
    world.kill(name)
    lost = await_loss(run, node)
    assert lost.cause.startswith(world.drained), lost.cause
    assert not losses(run, since)
    world.add(name)
    await_return(run, node)


def cut_off_for_a_moment(world: PoolWorld, run: LiveRun) -> None:
    name = world.names[0]
    with in_mid_step(run, name) as node:
        done = accepted_by(run, node)
        world.cut(name)
    run.wait_for(lambda: state_of(run, node) == "away")
    world.mend(name)
    run.wait_for(lambda: state_of(run, node) == "connected" and accepted_by(run, node) > done)
    lost = [event for event in run.events(NodeLost) if event.node == node]
    assert lost + [event for event in run.events(WorkerLost) if event.worker.startswith(f"{node}/")] == []


def cut_off_beyond_the_grace(world: PoolWorld, run: LiveRun, name: str = "") -> None:
    """The machine joins again by itself."""
    name = name or world.names[0]
    with in_mid_step(run, name) as node:
        held, since = run.held(node), len(run.records())
        world.cut(name)
    await_loss(run, node)
    check_lost(run, node, held, since)
    world.mend(name)
    await_return(run, node)


def agent_killed(world: PoolWorld, run: LiveRun) -> None:
    """The machine joins again by itself."""
    name = world.names[0]
    with in_mid_step(run, name) as node:
        os.kill(agent_of(world.mark, name), signal.SIGKILL)
    await_loss(run, node)
    await_return(run, node)


def all_lost_at_once(world: PoolWorld, run: LiveRun) -> None:
    nodes = [node_of(run, name) for name in world.names]
    for name in world.names:
        world.kill(name)
    for node in nodes:
        await_loss(run, node)
    steps = len(run.digests())
    run.wait_for(lambda: len(run.digests()) > steps + 1)
    for name in world.names:
        world.add(name)
    for node in nodes:
        await_return(run, node)


def state_of(run: LiveRun, node: str) -> str:
    beat = read_beat(run.run)
    return next((each.state for each in beat.nodes if each.node == node), "") if beat is not None else ""


def accepted_by(run: LiveRun, node: str) -> int:
    return sum(event.worker.startswith(f"{node}/") for event in run.events(Accepted))


STORIES = (
    killed_in_mid_step, warned_and_killed, cut_off_for_a_moment, cut_off_beyond_the_grace, agent_killed,
    all_lost_at_once,
)  # fmt: skip
