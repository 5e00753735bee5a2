"""Rounds of pictures under one policy, while slots come and go, in virtual time."""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from benchmarks.elastic.figures import POLICIES, Kind, Outcome, Policy
from benchmarks.elastic.fixed_crews import Elastic, FixedCrews, Idled, Relaunched, replay
from spotlight.compute.profiling.pace import Pace, ProfiledPace, TrainingCost
from spotlight.config import RunConfig
from spotlight.control.demand import Demands
from spotlight.control.directory import PublishedSet
from spotlight.control.dispatch import Dispatcher
from spotlight.control.ledger import Ledger
from spotlight.control.market.prices import PriceTable
from spotlight.control.market.traces import Trace
from spotlight.control.market.weather import Weather, generate
from spotlight.control.profiles import Operation, Profile
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.controller.hub import Hub
from spotlight.core.events import Accepted, AnyEvent, Crewing
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import Prompt, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import Request, SlotClass, WeightsId, Work
from spotlight.sim.fakes import mark
from spotlight.sim.machine_settings import SimMachineSettings
from spotlight.sim.message_trace import MessageTrace
from spotlight.sim.profiled import ProfiledPolicy
from spotlight.sim.sim_world import SimWorld
from spotlight.sim.storage import SimStorage
from spotlight.sim.virtual_loop import VirtualClock, run_virtually

NODES, SLOTS, GANG = 2, 8, 4
PICTURES = (4, 8)
"""Pictures per round: a quarter and a half of the slots."""
STEPS, GUIDANCE = 50, 4.0
"""Common settings of Qwen-Image."""
WEATHER = Weather(zones=NODES, median_zone_s=3600.0)
"""Lifetimes and absences fitted to published markets; in half of all cases a node loses all slots within an hour."""
PROMPT = Prompt(text="a page of a newspaper")
HEARTBEAT_S, SILENCE_S, TICK_S = 10.0, 60.0, 2.0
PRICE = "aws-p5en-h200"
VARIATION = 0.05
"""Largest difference between workers in the time to fetch weights, as a share of it."""


@dataclass(frozen=True)
class Case:
    """One run."""

    policy: Policy
    pictures: int
    seed: int
    hours: float
    profile: str


class VariedPolicy(ProfiledPolicy):
    """Workers differ in the time to fetch weights, so that no node always pulls first."""

    def pace(self, worker: WorkerId, slot_class: SlotClass) -> Pace:
        pace = super().pace(worker, slot_class)
        pace.load_s *= 1 + VARIATION * int(mark("fetch", worker)[:4], 16) / 0x10000
        return pace


class CrewPolicy(VariedPolicy):
    """Each worker is a whole crew, with the speed of its present size."""

    crews: FixedCrews

    def pace(self, worker: WorkerId, slot_class: SlotClass) -> Pace:
        pace = super().pace(worker, slot_class)
        assert isinstance(pace, ProfiledPace)
        return CrewPace(**vars(pace), degree=self.crews.degree(worker))


@dataclass
class CrewPace(ProfiledPace):
    degree: int = 1

    def step(self, rows: int, capacity: int, degree: int, is_exact: bool = True) -> float:
        return super().step(rows, capacity, self.degree, is_exact)


class Rounds:
    """The controller: pictures of one round, then training, then the next round."""

    def __init__(self, world: SimWorld, case: Case, profile: Profile) -> None:
        self.accepted = self.regroups = self.rounds = 0
        self._world, self._case = world, case
        self._training_s = training_s(profile, case)
        size = Size(profile.height, profile.width)
        self._sampling = Sampling(steps=STEPS, size=size, guidance=GUIDANCE)
        ledger = Ledger(self._note)
        self._dispatcher = Dispatcher(
            ledger, Scheduler(ledger, SchedulerSettings(silence_s=SILENCE_S)), world.storage, self._note,
            run_clock=lambda at: at, commit_every=2, demands=Demands(tokens(profile)),
        )  # fmt: skip
        self.hub = Hub(self._dispatcher, VirtualClock(asyncio.get_running_loop()), world.send)
        self.hub.tick_s = TICK_S

    def _note(self, event: AnyEvent) -> None:
        match event:
            case Accepted():
                self.accepted += 1
            case Crewing() if event.crews:
                self.regroups += 1

    async def run(self) -> None:
        for number in count():
            weights = WeightsId(Version(number))
            path = self._world.storage.weights_path(weights)
            self._world.storage.weights[path] = f"digest-{number}"
            self._dispatcher.publish(weights, PublishedSet(f"digest-{number}", path), ())
            self._dispatcher.issue(self._requests(number), [PROMPT], [number])
            self.hub.flush()
            wanted = self.accepted + self._case.pictures
            await self.hub.until(lambda wanted=wanted: self.accepted >= wanted)  # type: ignore[misc]
            self.rounds += 1
            await asyncio.sleep(self._training_s)

    def _requests(self, number: int) -> list[Request]:
        return [
            Request(
                work=Work.ROLLOUT, iteration=number, group=0,
                sample=Sample(prompt=PROMPT.id, seed=seed, sampling=self._sampling, version=Version(number)),
            )
            for seed in range(self._case.pictures)
        ]  # fmt: skip


def training_s(profile: Profile, case: Case) -> float:
    """Seconds of the gang per round, until the new weights are in the run's store."""
    config = work(case, profile)
    cost = TrainingCost.of(config.algorithm, config.rollout, config.train.batches_over)
    batch = -(-case.pictures // GANG) * cost.timesteps * cost.passes
    forwards_s = cost.forwards * profile.seconds(Operation.DENOISE_STEP, batch)
    return (
        profile.seconds(Operation.TRAIN_TIMESTEP, batch)
        + forwards_s
        + profile.seconds(Operation.OPTIMIZER_STEP, degree=GANG)
        + profile.seconds(Operation.PUBLISH)
    )


def tokens(profile: Profile) -> int:
    """Tokens of a picture, as simulated nodes count them."""
    return profile.width * profile.height // SimMachineSettings.of(RunConfig()).token_pixels


def work(case: Case, profile: Profile) -> RunConfig:
    """Settings of the run; crews have the degrees and speed-ups of the profile."""
    rows = 1 if GUIDANCE == 1.0 else 2
    alone = profile.seconds(Operation.DENOISE_STEP, rows)
    degrees = [1] if case.policy.kind is not Kind.ELASTIC else _degrees(profile)
    speed_ups = [
        (tokens(profile), degree, min(degree, alone / profile.seconds(Operation.DENOISE_STEP, rows, degree)))
        for degree in _degrees(profile)[1:]
    ]
    return RunConfig.model_validate(
        {
            "rollout": {"steps": STEPS, "guidance": GUIDANCE},
            "reward": {"processes": SLOTS},
            "cluster": {
                "slots": SLOTS,
                "rows": 1,
                "heartbeat_s": HEARTBEAT_S,
                "silence_s": SILENCE_S,
                "elastic": {"degrees": degrees, "speed_ups": speed_ups, "measure": False},
            },
        }
    )


def _degrees(profile: Profile) -> list[int]:
    return [degree for degree in profile.degrees(Operation.DENOISE_STEP) if degree <= SLOTS]


def slot_trace(seed: int, hours: float) -> Trace:
    """A trace of slots; zones are nodes, so an outage of a zone takes all slots of a node."""
    names = [f"spot-{node}/{slot}" for slot in range(SLOTS) for node in range(1, NODES + 1)]
    return generate(seed, names, hours, WEATHER)


def dollars(trace: Trace, hours: float, prices: PriceTable) -> float:
    """Bill of the slots while they are present and of the gang all the time."""
    end = hours * 3600
    lives = trace.stays()
    held_s = sum(min(end, life.lost_s if life.lost_s is not None else end) - min(end, life.start_s) for life in lives)
    price = prices[PRICE]
    spot = held_s / 3600 * price.per_gpu_hour(SlotClass.SPOT)
    return spot + GANG * hours * price.per_gpu_hour(SlotClass.RESERVED)


def all_outcomes(profile: str, hours: float, seeds: Sequence[int]) -> list[Outcome]:
    cases = [
        Case(policy, pictures, seed, hours, profile) for policy in POLICIES for pictures in PICTURES for seed in seeds
    ]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
        return list(processes.map(run, cases))


def description(profile_name: str, hours: float, outcomes: Sequence[Outcome]) -> tuple[dict[str, Any], str]:
    """The settings of a result, and a title."""
    profile, price = Profile.load(profile_name), PriceTable.load()[PRICE]
    losses = {each.seed: each.losses for each in outcomes}
    settings = {
        "profile": profile.name,
        "profile_digest": profile.digest,
        "price": price.name,
        "price_date": price.date,
        "spot": [NODES, SLOTS],
        "gang": GANG,
        "pictures": list(PICTURES),
        "steps": STEPS,
        "guidance": GUIDANCE,
        "hours": hours,
        "losses": sorted(losses.items()),
        "weather": msgspec.to_builtins(WEATHER),
    }
    title = f"virtual time, profile {profile.name}, prices of {price.name} ({price.date}), {len(losses)} traces"
    return settings, title


def run(case: Case) -> Outcome:
    return run_virtually(_run(case))


async def _run(case: Case) -> Outcome:
    profile = Profile.load(case.profile)
    config = work(case, profile)
    fixed = case.policy.kind in (Kind.RELAUNCH, Kind.IDLE)
    policy = (CrewPolicy if fixed else VariedPolicy)(profile, config)
    world = SimWorld(policy, SimStorage(), MessageTrace(is_kept=False), True, SimMachineSettings.of(config))
    follower: Elastic | FixedCrews = Elastic(world)
    if isinstance(policy, CrewPolicy):
        kind = Relaunched if case.policy.kind is Kind.RELAUNCH else Idled
        follower = policy.crews = kind(world, case.policy.size, _degrees(profile))
    rounds = Rounds(world, case, profile)
    trace = slot_trace(case.seed, case.hours)
    market = asyncio.create_task(replay(trace, follower))
    await asyncio.sleep(0)
    world.failed = rounds.hub.fail
    slots = SLOTS // case.policy.size
    world.plug(
        rounds.hub,
        [NodeSpec(name=f"spot-{n}", slot_class=SlotClass.SPOT, slots=slots, rows=1) for n in range(1, NODES + 1)],
    )
    jobs = [asyncio.create_task(job) for job in (rounds.run(), rounds.hub.tick_forever())]
    done, _ = await asyncio.wait(jobs, timeout=case.hours * 3600, return_when=asyncio.FIRST_COMPLETED)
    for job in done:
        job.result()
    for job in (*jobs, market):
        job.cancel()
    await asyncio.gather(*jobs, market, return_exceptions=True)
    world.unplug()
    return Outcome(
        policy=case.policy,
        pictures=case.pictures,
        seed=case.seed,
        accepted=rounds.accepted,
        rounds=rounds.rounds,
        hours=case.hours,
        dollars=dollars(trace, case.hours, PriceTable.load()),
        losses=sum(kill.time_s < case.hours * 3600 for kill in trace.kills),
        regroups=rounds.regroups,
    )
