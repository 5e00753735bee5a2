"""Builds the collaborators of a run; the simulator uses the same over simulated machines."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spotlight.compute.data.order import PromptOrder
from spotlight.compute.models.embeddings import EmbeddingFolder
from spotlight.compute.rewards.config import weights_of
from spotlight.config import RunConfig
from spotlight.control.demand import Demands
from spotlight.control.dispatch import Dispatcher
from spotlight.control.explore.config import Baseline, PlanKind, Timing
from spotlight.control.ledger import Ledger, SampleState
from spotlight.control.outside import Outgoing
from spotlight.control.recovery import Records, recover
from spotlight.control.scheduler.booking import GroupOrder
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.controller.checkpoints import Cadence, Checkpoints
from spotlight.controller.encoded_ahead import Embeddings, EncodedAhead, NoEmbeddings, PromptTexts
from spotlight.controller.exploration import Exploration, ExplorationRules, Explorer, NoExploration, Patience
from spotlight.controller.gang import Gang
from spotlight.controller.gang_members import GangSettings
from spotlight.controller.held_out import HeldOut
from spotlight.controller.hub import Hub
from spotlight.controller.overlap import Ahead, Asynchrony, Lead, NoAsynchrony
from spotlight.controller.payloads import Storage
from spotlight.controller.rollouts import Rollouts, RunRewards, Samples
from spotlight.controller.stall import StallContext, StallWatch
from spotlight.controller.training import Training
from spotlight.controller.update import Schedule
from spotlight.core.types import Prompt
from spotlight.core.work import Work
from spotlight.loop import Limits, Loop
from spotlight.node.term_judge import longest_verdict_s
from spotlight.run_log import RunLog


@dataclass(frozen=True)
class Wired:
    """The hub and the loop of a run."""

    hub: Hub
    loop: Loop


Encode: TypeAlias = Callable[[Sequence[str], Callable[[str], None]], Awaitable[None]]
"""Encodes texts, and reports its progress."""
MakeScheduler: TypeAlias = Callable[[Ledger, SchedulerSettings, GroupOrder], Scheduler]


def wire(
    run_log: RunLog,
    send: Callable[[Outgoing], None],
    storage: Storage,
    limits: Limits,
    encode: Encode | None = None,
    scheduler: MakeScheduler = Scheduler,
) -> Wired:
    """Build the collaborators, with the state of the run log; without `encode` no prompt needs a text encoder.

    Benchmarks that compare rules of the scheduler pass another one.
    """
    config, facts, emit = run_log.config, run_log.facts, run_log.emit
    settings = SchedulerSettings(
        silence_s=config.cluster.silence_s,
        audits_with_groups=config.explore.baseline is Baseline.AUDITED,
    )
    schedule = _schedule(config)
    dispatcher = Dispatcher(
        run_log.ledger,
        scheduler(run_log.ledger, settings, schedule.group_order(config.rollout.prompts)),
        storage,
        emit,
        run_clock=run_log.run_time,
        commit_every=config.cluster.commit_every,
        demands=Demands(facts.tokens(config.data.size)),
        pipeline=config.pipeline,
        previews_follow=config.explores and config.explore.timing is Timing.BESIDE,
    )
    hub = Hub(dispatcher, run_log.clock, send)
    samples = _samples(run_log)
    held_out_prompts = run_log.prompts.evaluated(config.eval.prompts)
    rewards = RunRewards(weights_of(run_log.rewards), config.reward.combine, run_log.rewards[0].name)
    rollouts = Rollouts(hub, samples, run_log.state, config.algorithm.advantage, emit, config.explore.baseline, rewards)
    gang = Gang(hub, gang_settings(config))
    hub.watch = _watch(run_log, hub, gang)
    training = Training(hub, gang, rollouts, run_log.state, storage, schedule, emit)
    cadence = Cadence(schedule.updates, config.output.checkpoint_every)
    checkpoints = Checkpoints(hub, gang, training, run_log.state, storage, cadence, emit)
    held_out = HeldOut(
        hub, training, run_log.state, config.eval, held_out_prompts, run_log.size, config.iterations, emit
    )
    explorer = _explorer(run_log, hub, samples, gang)
    loop = Loop(
        rollouts=rollouts,
        training=training,
        checkpoints=checkpoints,
        explorer=explorer,
        ahead=_ahead(run_log, hub, rollouts, explorer, schedule),
        embeddings=_embeddings(run_log, samples, held_out_prompts, encode),
        held_out=held_out,
        limits=limits,
        state=run_log.state,
        clock=run_log.clock,
        emit=emit,
        iterations=config.iterations,
    )
    _restore(run_log, dispatcher, storage, samples, held_out_prompts)
    return Wired(hub, loop)


def gang_settings(config: RunConfig) -> GangSettings:
    return GangSettings(
        timeout_s=config.train.timeout_s,
        slots=config.cluster.training_slots(),
        start_s=config.cluster.start_s,
        elastic=config.cluster.gang_elastic,
    )


def _schedule(config: RunConfig) -> Schedule:
    return Schedule(
        updates=min(config.train.updates_per_iteration, config.rollout.prompts),
        run_seed=config.seed,
        pipeline=config.pipeline,
        is_fixed=config.deterministic,
        gap_allowed=config.algorithm.gap_allowed(config.model.is_on_gpu),
    )


def _samples(run_log: RunLog) -> Samples:
    config = run_log.config
    return Samples(
        config.rollout,
        config.explore.noise,
        run_log.size,
        PromptOrder(run_log.prompts.training, config.seed),
        config.seed,
        config.explore.solver,
        config.explore.candidates_for(config.rollout.prompts) if config.explores else None,
    )


def _embeddings(run_log: RunLog, samples: Samples, held_out: list[Prompt], encode: Encode | None) -> Embeddings:
    config, facts, state = run_log.config, run_log.facts, run_log.state
    if facts.real is None or encode is None:
        return NoEmbeddings()
    updates = min(config.train.updates_per_iteration, config.rollout.prompts)
    always = [facts.real.negative_prompt, run_log.prompts.longest.text, *(prompt.text for prompt in held_out)]
    texts = PromptTexts(
        always=always,
        of=lambda iteration: [candidate.prompt.text for candidate in samples.candidates(iteration)],
        iterations=config.iterations,
    )
    return EncodedAhead(
        EmbeddingFolder.of(run_log.folder.embeddings, facts, config.model),
        int(config.model.embeddings_gb * 1e9),
        texts,
        oldest=lambda: state.checkpoint.step // updates if state.checkpoint is not None else 0,
        encode=encode,
        clock=run_log.clock,
        emit=run_log.emit,
    )


def _watch(run_log: RunLog, hub: Hub, gang: Gang) -> StallWatch:
    config, dispatcher = run_log.config, hub.dispatcher

    def look() -> StallContext:
        leased = dispatcher.ledger.counts()[SampleState.LEASED]
        scoring_s = longest_verdict_s(max(term.timeout_s for term in run_log.rewards)) if leased else 0.0
        # Steps are reported by heartbeats; a worker without one for silence_s is fenced.
        allowed_s = config.cluster.start_s + config.cluster.silence_s + scoring_s
        is_excused = gang.is_busy or bool(dispatcher.setbacks.awaited_rewards())
        return StallContext(dispatcher.signs, is_excused, allowed_s)

    return StallWatch(look, hub.waiting_for, dispatcher.setbacks.note, str(run_log.folder.path / "logs"))


def _explorer(run_log: RunLog, hub: Hub, samples: Samples, gang: Gang) -> Explorer:
    config = run_log.config
    if not config.explores:
        return NoExploration()
    rules = ExplorationRules(
        run_seed=config.seed,
        iterations=config.iterations,
        audit_share=config.explore.audit_share,
        scouts=config.explore.scouts,
        patience=Patience(config.explore.timing, config.explore.overrun, is_endless=config.deterministic),
        stale_share=config.pipeline.stale_share if config.pipeline.asynchrony else 0.0,
        slots=(config.cluster.reserved + config.cluster.spot) * config.cluster.slots - config.cluster.gang,
        is_assisted=config.pipeline.tag,
        is_early=config.pipeline.gap and config.explore.plan is PlanKind.FIXED,
    )
    return Exploration(hub, samples, run_log.state, run_log.planner, rules, lambda: gang.trained_s, run_log.emit)


def _ahead(run_log: RunLog, hub: Hub, rollouts: Rollouts, explorer: Explorer, schedule: Schedule) -> Ahead:
    config = run_log.config
    if not config.pipeline.asynchrony:
        return NoAsynchrony()
    lead = Lead(
        groups=config.rollout.prompts,
        updates=schedule.updates,
        run_seed=config.seed,
        iterations=config.iterations,
        pipeline=config.pipeline,
        is_fixed=config.deterministic,
    )
    return Asynchrony(hub, rollouts, explorer, run_log.state, lead)


def _restore(
    run_log: RunLog, dispatcher: Dispatcher, storage: Storage, samples: Samples, held_out: list[Prompt]
) -> None:
    """After a restart: end all leases, return the ledger to the checkpoint, reopen samples with lost tensors, queue
    open work, with the flights that are left."""
    ledger, state, config = run_log.ledger, run_log.state, run_log.config
    stored = storage.flights()
    digests = {weights: published.digest for weights, published in state.published.items()}
    flights = recover(stored, ledger, Records(run_log.holders, digests), storage.is_intact)
    run_log.holders.clear()
    needed = {part.ref for flight in flights.values() for part in flight}
    storage.release([part.ref for part in stored if part.ref not in needed])
    ledger.interrupt({request: flight[-1].step for request, flight in flights.items()})
    step = state.checkpoint.step if state.checkpoint is not None else 0
    if ledger.steps > step:
        ledger.restore(step, f"resumed from the checkpoint of {step} steps")
    updates = min(config.train.updates_per_iteration, config.rollout.prompts)
    prompts = {prompt.id: prompt for prompt in held_out}
    for iteration in range(step // updates, state.iterations_done + 2):
        prompts |= {each.prompt.id: each.prompt for each in samples.candidates(iteration)}
        for request in ledger.iteration(iteration, Work.ROLLOUT):
            if ledger.state(request.id) is not SampleState.ACCEPTED:
                continue
            accepted = ledger.accepted(request.id)
            if not storage.is_whole(accepted.payload or "", accepted.payload_digest or ""):
                ledger.reopen(request.id, "its tensors were lost or damaged")
    for request in ledger.unscored():
        # The reward may have been repaired since; what was compared or evaluated without the score stays so.
        is_settled = state.evaluated if request.work is Work.EVALUATION else state.compared
        if request.iteration not in is_settled:
            ledger.reopen(request.id, "it has no score")
    dispatcher.requeue(ledger.queued(), list(prompts.values()), flights)
