"""A random pixel model of two layers and what is needed to roll it out and train it in milliseconds."""

from collections.abc import Sequence

import torch

from spotlight.compute.data.words import letters_of
from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.models.pixels import PixelAdapter, PixelSpec
from spotlight.compute.models.text_table import TextTable
from spotlight.compute.rollout.denoise import Rollout, roll_out
from spotlight.compute.train.experience import Experience
from spotlight.compute.weights.resident import Resident
from spotlight.compute.weights.store import MappedWeights
from spotlight.control.pipeline.tsp import Pair, pairs_of
from spotlight.core.types import NO_WINDOW, Prompt, Sample, SamplerKind, Sampling, Size, Version, Window

RUN_SEED = 7
SIZE = Size(16, 24)
TEXT = TextTable(tokens=tuple("abcdefgh"), width=6, longest=6, tokenise=letters_of)
SPEC = PixelSpec(family="tiny", size=SIZE, patch=8, layers=2, head_dim=4, rope_axes=(0, 2, 2), text=TEXT)
# Prompts of different lengths, so that every batch has padding.
PROMPTS = tuple(Prompt(text=f'the word "{word}"', target=word) for word in ("a", "badge", "fed", "cabbed"))
NOISE_LEVELS = {SamplerKind.FLOW_SDE: 0.7, SamplerKind.DANCE_SDE: 0.3, SamplerKind.CPS: 0.8}


class OnDevice(Resident):
    """A resident whose sets would be copied to a device, which does not exist here."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")

    def load(self, stored: MappedWeights) -> str:
        return self.adopt(stored.weights, dict(stored.tensors))


def tiny_adapter(seed: int = 0) -> PixelAdapter:
    """A model whose random weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return PixelAdapter(SPEC, SPEC.build().eval())


def tiny_sampling(
    kind: SamplerKind = SamplerKind.ODE, window: Window = NO_WINDOW, steps: int = 5, guidance: float = 1.0
) -> Sampling:
    return Sampling(
        steps=steps,
        size=SIZE,
        sampler=kind,
        noise_level=NOISE_LEVELS.get(kind, 0.0),
        window=window,
        guidance=guidance,
    )


def sample_of(prompt: Prompt, seed: int, sampling: Sampling) -> Sample:
    return Sample(prompt=prompt.id, seed=seed, sampling=sampling, version=Version(0))


def grouped_samples(sampling: Sampling, group_size: int = 2) -> list[Sample]:
    """`group_size` samples of each prompt; with a window, it starts at 0 in even groups and at 1 in odd ones."""
    samples = []
    for group, prompt in enumerate(PROMPTS):
        window = Window(group % 2, sampling.window.size) if sampling.window.size else NO_WINDOW
        own = tiny_sampling(sampling.sampler, window, sampling.steps, sampling.guidance)
        samples += [sample_of(prompt, seed, own) for seed in range(group_size)]
    return samples


def conditions(adapter: PixelAdapter, samples: Sequence[Sample]) -> ConditionBatch:
    by_id = {prompt.id: prompt for prompt in PROMPTS}
    return adapter.collate(adapter.encode([by_id[sample.prompt] for sample in samples]))


def unconditions(adapter: PixelAdapter, samples: Sequence[Sample]) -> ConditionBatch | None:
    guided = samples[0].sampling.guidance != 1.0
    return adapter.collate([adapter.unconditional()] * len(samples)) if guided else None


def rolled_out(adapter: PixelAdapter, samples: Sequence[Sample]) -> Rollout:
    return roll_out(adapter, samples, conditions(adapter, samples), unconditions(adapter, samples), RUN_SEED)


def tiny_experience(adapter: PixelAdapter, samples: Sequence[Sample], advantages: Sequence[float] = ()) -> Experience:
    """A rollout of these samples; without `advantages` they alternate in sign and differ in size."""
    made = list(advantages) or [(-1.0) ** index * (0.3 + 0.1 * index) for index in range(len(samples))]
    return Experience(
        rollout=rolled_out(adapter, samples),
        cond=conditions(adapter, samples),
        uncond=unconditions(adapter, samples),
        advantage_B=torch.tensor(made),
        kept_B=torch.ones(len(samples), dtype=torch.bool),
        iteration=0,
    )


def kept_pairs(experience: Experience, samples: Sequence[int], places: int | Sequence[int]) -> list[Pair]:
    """Return the pairs to train for these samples; `places` is the number of timesteps per sample, or one for all."""
    counts = [places] * len(experience) if isinstance(places, int) else places
    return pairs_of(samples, experience.kept_B.tolist(), counts)
