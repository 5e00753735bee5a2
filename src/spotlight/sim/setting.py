"""The recipe, machines and speeds that a storm's seed draws, beside the faults."""

from dataclasses import dataclass, replace
from math import inf

from spotlight.config import RunConfig
from spotlight.control.explore.config import Baseline, ExploreConfig, PlanKind
from spotlight.core.node_spec import NodeSpec
from spotlight.core.work import SlotClass
from spotlight.pools.config import ClusterConfig
from spotlight.sim.fakes import Streams
from spotlight.sim.fault_policy import Tempo
from spotlight.sim.machine_settings import SimMachineSettings

SLOTS = 4
SPEED_UPS = [(48, degree, 0.8 * degree) for degree in range(2, SLOTS + 1)]
"""High enough that crews form wherever slots are idle."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One small run."""

    seed: int
    config: RunConfig
    nodes: tuple[NodeSpec, ...]
    tempo: Tempo

    @property
    def machines(self) -> SimMachineSettings:
        """Three quarters of all runs copy weights to devices; in half of all runs agents kill no silent worker, so that
        workers come back after they were fenced."""
        watched = SimMachineSettings.of(self.config, copies_sets=Streams(self.seed)["devices"].random() < 0.75)
        return watched if Streams(self.seed)["watch"].random() < 0.5 else replace(watched, silence_s=inf)

    @property
    def alone_s(self) -> float:
        """Seconds that one worker, row after row, needs for the steps of all rollouts."""
        rollout = self.config.rollout
        return self.config.iterations * rollout.prompts * rollout.group_size * rollout.steps * self.tempo.step_s


def draw_setting(seed: int) -> Setting:
    chance = Streams(seed)["setting"]
    spot = chance.choice((0, 1, 2, 3, 4))
    rows = chance.choice((2, 4, 6))
    heartbeat_s = chance.choice((0.5, 1.0, 2.0))
    config = RunConfig.model_validate(
        {
            "seed": seed,
            "iterations": chance.randint(3, 5),
            "rollout": {
                "prompts": chance.randint(2, 4),
                "group_size": chance.randint(2, 4),
                "steps": chance.randint(3, 6),
            },
            "train": {"updates_per_iteration": chance.randint(1, 2)},
            "eval": {"every": chance.randint(1, 3), "prompts": chance.randint(1, 4), "steps": chance.randint(2, 4)},
            "explore": {
                "enabled": chance.choice(("on", "on", "on", "off")),
                "plan": "fixed" if (is_exact := chance.random() < 0.5) else chance.choice(("fixed", "bandit")),
                "seeds": chance.randint(4, 8),
                "steps": 2,
                "arms": [1, 2, 3],
                "audit_share": chance.choice((0.1, 0.5)),
            },
            "cluster": {
                "rows": rows,
                "commit_every": chance.randint(1, 3),
                "heartbeat_s": heartbeat_s,
                "silence_s": chance.choice((8.0, 12.0)),
                "slots": SLOTS,
                "elastic": {"speed_ups": SPEED_UPS, "hysteresis_s": 0.5, "measure": False},
            },
            "pipeline": _draw_pipeline(seed),
            "reward": _draw_rewards(seed),
            "output": {"checkpoint_every": chance.randint(1, 3), "journal": {"sync": "never", "segment_bytes": 16384}},
            "deterministic": is_exact,
        }
    )
    machines = chance.choice((1, 1, 2))
    cluster = _with_gang(config.cluster, seed, machines, is_exact)
    nodes = cluster.reserved_nodes()
    nodes += [
        NodeSpec(name=f"spot-{n}", slot_class=SlotClass.SPOT, slots=chance.choice((1, 1, 2, SLOTS)), rows=rows)
        for n in range(1, spot + 1)
    ]
    tempo = Tempo(
        step_s=chance.uniform(0.2, 1.0),
        start_s=chance.uniform(0.5, 4.0),
        load_s=chance.uniform(0.05, 0.5),
        train_s=chance.uniform(0.5, 5.0),
        score_s=chance.uniform(0.05, 1.0),
        heartbeat_s=heartbeat_s,
        latency_s=chance.choice((0.001, 0.01, 0.1)),
        return_s=chance.uniform(0.5, 8.0),
        restart_s=chance.uniform(0.1, 1.0),
    )
    explore = _with_baseline(_with_candidates(config.explore, seed), seed, config.explores)
    config = config.model_copy(update={"cluster": cluster, "explore": explore})
    return Setting(seed=seed, config=config, nodes=tuple(nodes), tempo=tempo)


def _with_gang(cluster: ClusterConfig, seed: int, machines: int, is_exact: bool) -> ClusterConfig:
    """One to four training ranks on these machines, half of the gangs elastic; from their own stream."""
    chance = Streams(seed)["ranks"]
    ranks, elastic = chance.choice((1, 1, 1, 2, 2, 3, 4)), chance.random() < 0.5
    gang = {"gang": ranks, "slots": -(-ranks // machines), "gang_elastic": elastic and not is_exact}
    return cluster.model_copy(update={"reserved": machines, **gang})


def _with_candidates(explore: ExploreConfig, seed: int) -> ExploreConfig:
    """Half of all fixed plans choose among more prompts, half of those with scouts; from their own stream."""
    chance = Streams(seed)["candidates"]
    if explore.plan is not PlanKind.FIXED or chance.random() < 0.5:
        return explore
    scouts = chance.choice((0, explore.seeds - 1))
    return explore.model_copy(update={"candidates": chance.choice((1.5, 2.0, 3.0)), "scouts": scouts})


def _with_baseline(explore: ExploreConfig, seed: int, explores: bool) -> ExploreConfig:
    """Half of all runs that explore measure advantages from the prompt's mean; from their own stream."""
    is_audited = explores and Streams(seed)["baseline"].random() < 0.5
    return explore.model_copy(update={"baseline": Baseline.AUDITED}) if is_audited else explore


def _draw_rewards(seed: int) -> dict[str, object]:
    """Half of all runs have two rewards, half of those with separate advantages; from their own stream."""
    chance = Streams(seed)["rewards"]
    terms = [{"name": "jpeg", "weight": chance.choice((0.5, 1.0, -2.0))}, {"name": "ocr"}]
    combine = chance.choice(("sum", "gdpo"))
    return {"terms": terms, "combine": combine} if chance.random() < 0.5 else {}


def _draw_pipeline(seed: int) -> dict[str, object]:
    """From their own streams, so that the rest of a seed's setting does not change."""
    chance, ahead = Streams(seed)["overlap"], Streams(seed)["ahead"]
    return {
        "asynchrony": ahead.random() < 0.5,
        "stale_share": ahead.choice((0.34, 0.5, 0.5, 1.0)),
        "gap": chance.random() < 0.5,
        "tag": chance.random() < 0.7,
        "least_groups": chance.choice((1, 1, 2)),
        "switch_s": chance.choice((0.0, 0.5, 2.0)),
    }
