"""Sections `algorithm` and `train` of a recipe; free of torch."""

from enum import StrEnum
from math import inf
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from spotlight.control.advantage import StdMode
from spotlight.control.pipeline.tsp import BatchesOver
from spotlight.core.errors import ConfigError
from spotlight.core.section import Section


class AdvantageConfig(Section):
    """Scaling of rewards to advantages."""

    std: StdMode = StdMode.LAGGED
    """Divisor of r - mean: std of the `group`, `lagged` over earlier iterations, or of the whole `iteration`."""
    eps: float = Field(default=1e-4, gt=0)
    """Added to the std."""


class OldDecay(StrEnum):
    """Schedule of d in NFT's behaviour policy: old <- d old + (1 - d) theta after each iteration.

    d depends on k, the optimizer steps of the run including the iteration that ended. k is `global_step` of the
    authors' code (NVlabs/DiffusionNFT); its schedule numbers are given as types.
    """

    LATEST = "latest"
    """d = 0: old is the last iterate (type 0)."""
    RAMP = "ramp"
    """d = min(0.001 k, 0.5) (type 1)."""
    DELAYED = "delayed"
    """d = 0 for k < 75, then min(0.0075 (k - 75), 0.999) (type 2)."""

    def at(self, updates: int) -> float:
        """Return d after an iteration that ends at optimizer step `updates`."""
        match self:
            case OldDecay.LATEST:
                return 0.0
            case OldDecay.RAMP:
                return min(0.001 * updates, 0.5)
            case OldDecay.DELAYED:
                return min(0.0075 * max(updates - 75, 0), 0.999)


class NftConfig(Section):
    """DiffusionNFT: needs finished samples and rewards only, from any sampler."""

    kind: Literal["nft"] = "nft"
    """The loss, whose keys the section has."""
    beta: float = Field(default=1.0, gt=0)
    """Distance of the implicit positive and negative policies from old; shapes the trust region, not the
    first step."""
    advantage_clip: float = Field(default=1.0, gt=0)
    """Advantages beyond this are full preferences 0 and 1; the loss is multiplied by it, so that its slope
    per unit of advantage does not depend on it. The paper uses 5."""
    kl_weight: float = Field(default=0.0, ge=0)
    """Weight of the mean squared distance to the base model's velocity; above 0 it costs a third forward."""
    timesteps_per_sample: int = Field(default=2, ge=1)
    """Number of noise levels at which each sample is trained in one iteration."""
    old_decay: OldDecay | Annotated[float, Field(ge=0, lt=1)] = OldDecay.LATEST
    """Decay d of the behaviour policy: a schedule, or a constant."""
    advantage: AdvantageConfig = AdvantageConfig()

    def gap_allowed(self, on_gpu: bool) -> float:
        """Any: NFT has no log-probabilities."""
        return inf

    def weight_sets(self, takes_stale: bool, on_gpu: bool) -> int:
        """Copies of the trained weights that the loss needs beside theta and the average: old, reference, before."""
        return 1 + (self.kl_weight > 0) + takes_stale

    def old_decay_at(self, updates: int) -> float:
        """Return d after an iteration that ends at optimizer step `updates`."""
        return self.old_decay.at(updates) if isinstance(self.old_decay, OldDecay) else self.old_decay


class OldLogProb(StrEnum):
    """Source of the log-probabilities that Flow-GRPO's ratio is relative to."""

    AUTO = "auto"
    """`recomputed` on a GPU, `recorded` on a CPU."""
    RECORDED = "recorded"
    """Those of the rollout: exact where training runs the rollout's kernels."""
    RECOMPUTED = "recomputed"
    """Those of the training forward with the iteration's first weights. The first update of an iteration gets them
    without another forward."""


LOG_PROB_GAP = "log_prob_gap"
"""Figure of an update: mean distance between the log-probs of rollout and training at the same weights."""
LARGEST_GAP = 0.01
"""Accepted mean gap between recorded and recomputed log-probabilities: 1 % of a ratio."""


class FlowGrpoConfig(Section):
    """Flow-GRPO: a clipped policy gradient on the steps of the SDE window."""

    kind: Literal["flow_grpo"] = "flow_grpo"
    """The loss, whose keys the section has."""
    old_log_prob: OldLogProb = OldLogProb.AUTO
    """On a GPU the number of rows chooses kernels, so that a training forward differs from the rollout's by more than
    a clip range; recomputed log-probabilities make the ratio exactly 1 before the first step."""
    clip: float = Field(default=1e-4, gt=0, lt=1)
    """The ratio's gradient stops beyond 1 +- clip. Small, because log-probabilities are means over
    dimensions."""
    advantage_clip: float = Field(default=5.0, gt=0)
    """Advantages are clamped to +- this."""
    kl_weight: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the base model; above 0 it costs a second forward."""
    kl_divides_by_dt: bool = False
    """True: the KL of the two Gaussians, divided by g^2 |dt|. False: as published, divided by g^2, which is
    smaller by |dt|: with 10 steps a weight of 0.04 without dt is about 0.004 with it. CPS has no dt, so both
    are equal."""
    ratio_normalisation: bool = False
    """GRPO-Guard: centre the log-ratio, measure it in the same units at every step, and weigh steps by
    1/|dt|. The rollout then stores means; use a clip near 2e-6."""
    stale_weight_cap: float = Field(default=2.0, ge=1)
    """Largest weight of a stale sample. If stale samples are clipped more than twice as often as fresh ones, the clip
    moves to the iteration's first weights, and a stale sample is weighted by the ratio of those to its own weights."""
    advantage: AdvantageConfig = AdvantageConfig()

    def recomputes(self, on_gpu: bool) -> bool:
        match self.old_log_prob:
            case OldLogProb.AUTO:
                return on_gpu
            case OldLogProb.RECORDED:
                return False
            case OldLogProb.RECOMPUTED:
                return True

    def weight_sets(self, takes_stale: bool, on_gpu: bool) -> int:
        """Copies of the trained weights that the loss needs beside theta and the average: reference, start."""
        return (self.kl_weight > 0) + (takes_stale or self.recomputes(on_gpu))

    def gap_allowed(self, on_gpu: bool) -> float:
        """Largest mean gap between the log-probs of rollout and training: recorded ones must be within the clip."""
        return LARGEST_GAP if self.recomputes(on_gpu) else self.clip


AlgorithmConfig: TypeAlias = Annotated[NftConfig | FlowGrpoConfig, Field(discriminator="kind")]


class LoraConfig(Section):
    """Low-rank adapters instead of all weights."""

    rank: int = Field(default=32, ge=1)
    """Inner dimension of each adapter."""
    alpha: float = Field(default=64.0, gt=0)
    """The adapter's output is scaled by alpha / rank."""


AUTO: Literal["auto"] = "auto"
UNMEASURED_ROWS = 64
"""Rows of a forward where `auto` is not measured."""


def _is_row_count(value: Any) -> Any:
    """Validate before the union, whose pydantic error would list every member that refused the value."""
    if value != AUTO and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError("it takes a whole number of rows, at least 1, or auto")
    return value


RowCount: TypeAlias = Annotated[int | Literal["auto"], BeforeValidator(_is_row_count)]


class Parallel(StrEnum):
    """How training ranks share the model."""

    AUTO = "auto"
    REPLICATED = "replicated"
    """Every rank holds the whole model; gradients are summed once per optimizer step."""
    SHARDED = "sharded"
    """Every rank holds some rows of each weight, and forwards gather them (FSDP2)."""


def _is_recomputation(value: Any) -> Any:
    if value != AUTO and (not isinstance(value, int) or value < 0):
        raise ValueError("it takes true, false, a whole number of blocks, or auto")
    return value


Recomputation: TypeAlias = Annotated[bool | int | Literal["auto"], BeforeValidator(_is_recomputation)]


class TrainConfig(Section):
    """The optimizer (AdamW), the batching of rows, and the trained parameters."""

    lr: float = Field(default=1e-4, gt=0)
    """Learning rate; constant."""
    weight_decay: float = Field(default=1e-4, ge=0)
    """Decoupled weight decay."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """AdamW's decays of the first and second moment."""
    optimizer_eps: float = Field(default=1e-8, gt=0)
    """AdamW's eps."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this global norm."""
    micro_batch: RowCount = 32
    """Rows (a sample at one timestep) per forward; changes memory and speed, not the gradient. `auto` doubles it
    over the first batches while that saves time and fits the device's memory."""
    batches_over: BatchesOver = BatchesOver.PAIRS
    """Whether a forward takes rows of any timesteps (`pairs`) or of one timestep of each sample (`samples`)."""
    updates_per_iteration: int = Field(default=2, ge=1)
    """Optimizer steps per iteration, over disjoint groups."""
    ema_decay: float = Field(default=0.9, ge=0, lt=1)
    """Decay per optimizer step of the averaged weights that evaluation uses; 0 evaluates the weights themselves."""
    ema_warmup: bool = True
    """Limit the decay to (1 + k) / (10 + k) after k optimizer steps, so that the base model soon leaves the average:
    with 0.9 its share is 0.5 % after 4 steps instead of 66 %, and 0.006 % after 10 instead of 35 %."""
    lora: LoraConfig | None = None
    """Low-rank adapters; None trains all weights."""
    gradient_checkpointing: Recomputation = False
    """Recompute activations in the backward pass: less memory, about a third more time, the same gradient. A number is
    that of recomputed blocks, from the first one on; auto recomputes as few as the device's memory needs, and none on a
    CPU."""
    parallel: Parallel = Parallel.AUTO
    """How several training ranks share the model: every rank holds all of it (`replicated`), or some of its weights
    (`sharded`, FSDP2). `auto` is sharded only where a whole model does not fit and the ranks can be sharded."""
    sequence_ranks: int = Field(default=1, ge=1)
    """Ranks that split the image tokens of a forward between them; a divisor of the number of training ranks."""
    timeout_s: float = Field(default=3600.0, gt=0)
    """Seconds after which an optimizer step, a publication or a checkpoint counts as hung; the trainer is then
    killed and restarted from the newest checkpoint."""

    @property
    def rows_per_forward(self) -> int:
        """Rows of a forward in programs of one process, for rollout and training alike."""
        return UNMEASURED_ROWS if self.micro_batch == AUTO else self.micro_batch

    def ema_decay_at(self, updates: int) -> float:
        """Decay of the averaged weights at optimizer step number `updates`, counted from 1."""
        return min((1 + updates) / (10 + updates), self.ema_decay) if self.ema_warmup else self.ema_decay

    @property
    def resolved_parallel(self) -> Parallel:
        """The way that `auto` stands for: every rank holds the whole model."""
        return Parallel.REPLICATED if self.parallel is Parallel.AUTO else self.parallel

    @property
    def is_sharded(self) -> bool:
        """Whether each of several ranks holds a share of the weights."""
        return self.resolved_parallel is Parallel.SHARDED

    def check_ranks(self, ranks: int, roll_out: bool, elastic: bool = False) -> None:
        """Refuse settings that this number of training ranks, which may also roll out or be fewer, cannot have."""
        if self.is_sharded and elastic:
            raise ConfigError(
                "train.parallel is sharded but cluster.gang_elastic is true, and fewer ranks would each hold more of "
                "the weights than was planned; set cluster.gang_elastic to false, or train.parallel to replicated."
            )
        if self.is_sharded and roll_out:
            raise ConfigError(
                "train.parallel is sharded but pipeline.tag is on, and a rank with a share of the weights cannot roll "
                "out alone; set pipeline.tag to false, with other slots to roll out, or train.parallel to replicated."
            )
        if ranks % self.sequence_ranks:
            raise ConfigError(
                f"train.sequence_ranks is {self.sequence_ranks} but {ranks} ranks train, which cannot be divided into "
                "crews of that size; set train.sequence_ranks to a divisor of the number of training ranks."
            )
        if self.is_sharded and self.sequence_ranks > 1:
            raise ConfigError(
                f"train.parallel is sharded and train.sequence_ranks is {self.sequence_ranks}, but ranks that share "
                "weights train different rows; set train.sequence_ranks to 1, or train.parallel to replicated."
            )
        exchanges = "train.parallel is sharded" if self.is_sharded else f"train.sequence_ranks is {self.sequence_ranks}"
        if self.micro_batch == AUTO and (self.is_sharded or self.sequence_ranks > 1):
            raise ConfigError(
                f"train.micro_batch is auto and {exchanges}, but ranks that exchange tensors in a forward must run "
                "equal batches, and each one would find another size; set train.micro_batch to a number."
            )

    def check_deterministic(self) -> None:
        """Refuse settings that give other bits in another run."""
        if self.micro_batch == AUTO:
            raise ConfigError(
                "deterministic is on but train.micro_batch is auto, which depends on measured times, and another batch "
                "size sums gradients in another order; set train.micro_batch to a number, or deterministic to false."
            )
