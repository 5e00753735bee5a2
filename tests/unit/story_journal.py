"""A small realistic run as journal records: one reserved slot, three spot slots on two nodes, previews, losses.

Per iteration: rollouts on all slots, then training on the reserved one while the spot slots preview. Spot machines go
without notice in every iteration = 1 (mod 4), with notice in 2, all at once in 3, and come back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from spotlight.core.events import (
    SCHEMA,
    Accepted,
    AnyEvent,
    Compared,
    Evaluated,
    ExplorationClosed,
    Fidelity,
    Issued,
    IterationDone,
    Leased,
    NodeJoined,
    NodeLost,
    NoticeGiven,
    Planned,
    Previewed,
    Published,
    Record,
    Released,
    RunStarted,
    RunStopped,
    Selected,
    StepCommitted,
    Worked,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.types import Frontier, NodeId, PromptId, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import Activity, NoticeKind, Policy, ReleaseReason, Request, SlotClass, WeightsId, Work

GROUPS, GROUP_SIZE, STEPS = 4, 4, 10
ROLLOUT_S, TRAIN_S, EVAL_S, BOOT_S, AWAY_S = 8.0, 6.0, 2.0, 1.5, 3.0
PRICE = "aws-p5-h100"
SLOTS = {"reserved-1": 1, "spot-1": 2, "spot-2": 1}
REDONE = 3
PROMPTS = ("harbour", "<b>&amp;", "quartz", "meadow")


def digest(version: int, policy: Policy) -> str:
    """Digest of published weights; version 0 is the base."""
    return f"{policy.value}-{version}" if version else "base"


def request(work: Work, iteration: int, group: int, seed: int, steps: int = STEPS) -> Request:
    sampling = Sampling(steps=steps, size=Size(32, 96))
    sample = Sample(prompt=PromptId(PROMPTS[group]), seed=seed, sampling=sampling, version=Version(iteration))
    return Request(work=work, iteration=iteration, group=group, sample=sample)


def reward_of(ask: Request) -> float:
    """Reward of a rollout: from 0.35 to 0.65 by its place in the group, more in later iterations."""
    return 0.35 + 0.1 * (ask.sample.seed % GROUP_SIZE) + 0.01 * ask.iteration


@dataclass
class RunScript:
    """Collects events with their times; `records` sorts them by time."""

    now: float = 0.0
    events: list[tuple[float, AnyEvent]] = field(default_factory=list)
    workers: dict[str, WorkerId] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)

    def add(self, event: AnyEvent, after: float = 0.0) -> None:
        self.events.append((self.now + after, event))

    def records(self) -> list[Record]:
        events = sorted(self.events, key=lambda pair: pair[0])
        return [Record(seq, at, event) for seq, (at, event) in enumerate(events)]

    def start(self) -> None:
        started = RunStarted(
            schema=SCHEMA,
            run_seed=7,
            recipe="words-nft",
            config_digest="c0ffee",
            code="0.1.0",
            base_digest="base",
            wall=1.7e9,
        )
        self.add(started)
        for node in SLOTS:
            self.join(node)
        self.now += BOOT_S

    def join(self, name: str, after: float = 0.0) -> None:
        """Add a machine of that name; its workers are ready after BOOT_S."""
        self.lives[name] = self.lives.get(name, 0) + 1
        node = NodeId(f"{name}.{self.lives[name]}")
        slot_class = SlotClass.RESERVED if name.startswith("reserved") else SlotClass.SPOT
        self.add(NodeJoined(node=node, slot_class=slot_class, slots=SLOTS[name], price=PRICE), after)
        for slot in range(SLOTS[name]):
            worker = WorkerId(f"{node}/{slot}.1")
            self.workers[f"{name}/{slot}"] = worker
            joined = WorkerJoined(worker=worker, node=node, slot_class=slot_class, rows=4)
            self.add(joined, after + BOOT_S)

    def lose(self, name: str, after: float, notice: float = 0.0) -> None:
        node = NodeId(f"{name}.{self.lives[name]}")
        for slot in range(SLOTS[name]):
            worker = self.workers[f"{name}/{slot}"]
            if notice:
                warned = NoticeGiven(worker=worker, kind=NoticeKind.IMMINENT, seconds=notice)
                self.add(warned, after - notice)
            self.add(WorkerLost(worker=worker, cause="killed", noticed=notice > 0), after)
        self.add(NodeLost(node=node, cause="killed"), after)
        self.join(name, after + AWAY_S)

    def work(self, slot: str, activity: Activity, start: float, end: float) -> None:
        worked = Worked(
            worker=self.workers[slot], activity=activity, start=self.now + start, end=self.now + end, iteration=0
        )
        self.add(worked, end)

    def evaluate(self, iteration: int) -> None:
        wanted = [request(Work.EVALUATION, iteration, group, group) for group in range(GROUPS)]
        self.add(Issued(requests=tuple(wanted)))
        for slot in self.workers:
            self.work(slot, Activity.EVALUATION, 0.1, EVAL_S)
        value = 0.40 + 0.4 * (1 - 0.8**iteration)
        for number, ask in enumerate(wanted):
            worker = list(self.workers.values())[number % len(self.workers)]
            self.add(Leased(request=ask.id, attempt=1, worker=worker), 0.1)
            accepted = Accepted(
                request=ask.id,
                attempt=1,
                worker=worker,
                digest=digest(iteration, Policy.AVERAGE),
                reward=value,
                payload=f"images/{iteration:04d}-{ask.group}.png",
                steps=STEPS,
            )
            self.add(accepted, EVAL_S)
        scores = {
            "exact": (value, value - 0.06, value + 0.06),
            "reward": (value + 0.2, value + 0.18, value + 0.22),
        }
        self.add(Evaluated(iteration=iteration, scores=scores), EVAL_S)
        self.now += EVAL_S

    def roll_out(self, iteration: int) -> list[Request]:
        """All rollouts of an iteration; the machines of `iteration % 4` are lost half-way; their work is repeated."""
        wanted = [
            request(Work.ROLLOUT, iteration, g, 100 * iteration + s) for g in range(GROUPS) for s in range(GROUP_SIZE)
        ]
        self.add(Issued(requests=tuple(wanted), positions=tuple(range(iteration * GROUPS, (iteration + 1) * GROUPS))))
        notice = 2.0 if iteration % 4 == 2 else 0.0
        gone = {1: ("spot-2",), 2: ("spot-1",), 3: ("spot-1", "spot-2")}.get(iteration % 4, ())
        half = ROLLOUT_S / 2
        slots = list(self.workers)
        for number, ask in enumerate(wanted):
            slot = slots[number % len(slots)]
            attempt, step = 1, 0
            self.add(Leased(request=ask.id, attempt=1, worker=self.workers[slot]), 0.01)
            if slot.rpartition("/")[0] in gone:
                reason = ReleaseReason.HANDED_BACK if notice else ReleaseReason.LOST
                redone = 0 if notice else REDONE
                self.add(Released(request=ask.id, attempt=1, reason=reason, step=4, redone=redone), half)
                attempt, step, slot = 2, 4, "reserved-1/0"
                self.add(Leased(request=ask.id, attempt=2, worker=self.workers[slot], step=4), half + 0.1)
            accepted = Accepted(
                request=ask.id,
                attempt=attempt,
                worker=self.workers[slot],
                digest=digest(iteration, Policy.BEHAVIOUR),
                reward=reward_of(ask),
                components={"edit": reward_of(ask) - 0.1, "exact": float(reward_of(ask) > 0.6)},
                steps=STEPS - step,
            )
            self.add(accepted, ROLLOUT_S)
        for slot in slots:
            end = half if slot.rpartition("/")[0] in gone else ROLLOUT_S
            self.work(slot, Activity.ROLLOUT, 0.2, end)
        for name in gone:
            self.lose(name, half, notice)
        self.now += ROLLOUT_S
        return wanted

    def train(self, iteration: int, wanted: Sequence[Request]) -> None:
        """One optimizer step, while the spot slots preview for the next iteration."""
        rewards = tuple(
            tuple(reward_of(ask) for ask in wanted[group * GROUP_SIZE : (group + 1) * GROUP_SIZE])
            for group in range(GROUPS)
        )
        kept = ((True,) * GROUP_SIZE,) * GROUPS
        self.add(Compared(iteration=iteration, rewards=rewards, advantages=rewards, kept=kept))
        self.work("reserved-1/0", Activity.TRAIN, 0.0, TRAIN_S)
        late = AWAY_S + BOOT_S - ROLLOUT_S / 2 if iteration % 4 else 0.0
        for slot in list(self.workers)[1:]:
            self.work(slot, Activity.LOAD, late + 0.1, late + 0.4)
            self.work(slot, Activity.PREVIEW, late + 0.4, TRAIN_S - 0.3)
        self.explore(iteration + 1)
        step = StepCommitted(
            step=iteration,
            iteration=iteration,
            update=0,
            requests=tuple(ask.id for ask in wanted),
            frontier=Frontier((iteration + 1) * GROUPS),
            digest=f"theta-{iteration + 1}",
            figures={"loss": 1.0 / (iteration + 1), "grad_norm": 0.25, "kl": 0.001 * iteration},
        )
        self.add(step, TRAIN_S)
        for policy in Policy:
            weights = WeightsId(Version(iteration + 1), policy)
            self.add(Published(weights=weights, digest=digest(iteration + 1, policy), step=iteration + 1), TRAIN_S)
        done = IterationDone(iteration=iteration, rollout_s=ROLLOUT_S, train_s=TRAIN_S, reward=0.5 + 0.05 * iteration)
        self.add(done, TRAIN_S)
        self.now += TRAIN_S

    def explore(self, iteration: int) -> None:
        planned = Planned(iteration=iteration, seeds=(16,) * GROUPS, steps=6, budget_s=TRAIN_S, predicted_s=5.5)
        self.add(planned, 0.05)
        finished = 64 if iteration % 4 == 1 else 48
        groups = tuple(n % GROUPS for n in range(finished))
        seeds = tuple(100 * iteration + n for n in range(finished))
        previewed = Previewed(
            iteration=iteration,
            steps=6,
            version=Version(iteration - 1),
            groups=groups,
            seeds=seeds,
            rewards=(0.5,) * finished,
        )
        self.add(previewed, TRAIN_S - 0.4)
        closed = ExplorationClosed(iteration=iteration, finished=finished, discarded=64 - finished, seconds=5.4)
        self.add(closed, TRAIN_S - 0.3)
        chosen = tuple(tuple(range(GROUP_SIZE)) for _ in range(GROUPS))
        self.add(Selected(iteration=iteration, seeds=chosen, fresh=(0,) * GROUPS), TRAIN_S - 0.2)
        figures = {"spearman": 0.8, "captured_variance": 0.86 - 0.02 * (iteration % 3), "payoff": 1.9}
        self.add(Fidelity(iteration=iteration, steps=6, figures=figures), TRAIN_S - 0.1)


def story(iterations: int = 5, evaluate_every: int = 1, finished: bool = True) -> list[Record]:
    """The records of the whole run; without `finished` it has not ended."""
    script = RunScript()
    script.start()
    script.evaluate(0)
    for iteration in range(iterations):
        wanted = script.roll_out(iteration)
        script.train(iteration, wanted)
        if (iteration + 1) % evaluate_every == 0:
            script.evaluate(iteration + 1)
    if finished:
        script.add(RunStopped(reason="all iterations are done", finished=True))
    return script.records()
