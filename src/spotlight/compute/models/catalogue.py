"""Facts of a model before it is loaded; free of torch, for the controller."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from spotlight.assets import asset
from spotlight.compute.data.worlds import World, world
from spotlight.compute.models.blocks import NO_DECODER, DecoderShape, TransformerShape
from spotlight.compute.models.config import FLOAT32, ModelConfig
from spotlight.compute.models.family_registry import FAMILIES, QWEN_IMAGE, Family, Geometry
from spotlight.compute.models.folder_facts import read_folder
from spotlight.compute.models.sources import Source, SourceKind, base_of, resolve
from spotlight.compute.weights.header import read_shapes
from spotlight.core.errors import ConfigError, InputError, SizeError
from spotlight.core.types import Size

HEADS = 12
PATCHES = {"words": 8, "words-large": 4, "scenes": 8}
"""Edge in pixels of the square patch of one token, by tiny family (checked by tests/unit/test_catalogue.py)."""
FLOAT_BYTES = 4
HALF_BYTES = 2
TEMPLATE_TOKENS = 5
"""Tokens after a prompt that belong to the encoder's template."""
TOKEN_BYTES = 3
"""Fewest bytes of text per token that are assumed where the tokenizer is not loaded: English has about 4.5. The
tokenizers of models with random weights know few words: a token may be a letter."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Identity and sizes of one model, from the headers of its files."""

    family: str
    digest: str
    heads: int
    geometry: Geometry
    default_size: Size
    parameters: int
    """Parameters of the transformer."""
    matrix_edges: int
    """Sum of rows and columns of the matrices that adapters change: adapters of rank r have at most r times this many
    parameters."""
    shape: TransformerShape
    """Blocks of the transformer."""
    vae_parameters: int = 0
    decoder: DecoderShape = NO_DECODER
    text_parameters: int = 0
    """Parameters of all text encoders."""
    embeds_guidance: bool = False
    """Whether the transformer takes the guidance as an input, so that a guided velocity is one forward."""
    text_digest: str = ""
    """Identity of the text encoders; empty if the family has none."""
    world: World | None = None
    """Prompts and rewards of a tiny family."""
    real: Family | None = None
    """None for a tiny family."""

    @property
    def token_pixels(self) -> int:
        return self.geometry.multiple**2

    @property
    def reward(self) -> str | None:
        """Reward of its own world."""
        return self.world.reward if self.world is not None else None

    @property
    def judge(self) -> str | None:
        """Second judge of its own world."""
        return self.world.judge if self.world is not None else None

    def bytes(self, model: ModelConfig) -> int:
        """Bytes of the loaded weights: the transformer in its precision, the VAE in fp32."""
        return self.number_bytes(model) * self.parameters + FLOAT_BYTES * self.vae_parameters

    def number_bytes(self, model: ModelConfig) -> int:
        """Bytes of a number in the transformer's compute type."""
        return FLOAT_BYTES if self.precision(model) == FLOAT32 else HALF_BYTES

    def text_tokens(self, model: ModelConfig, longest_prompt: str) -> int:
        """Width of padded text for the longest prompt, estimated from its length."""
        if self.world is not None:
            return self.world.vocabulary.width
        assert self.real is not None
        if not self.real.text_buckets:
            return self.real.text_widths(model.max_text_tokens or self.real.longest_prompt)[0]
        token_bytes = 1 if resolve(model.name).kind is SourceKind.RANDOM else TOKEN_BYTES
        tokens = TEMPLATE_TOKENS + len(longest_prompt.encode()) // token_bytes
        return next((width for width in self.real.text_buckets if width >= tokens), self.real.text_buckets[-1])

    def precision(self, model: ModelConfig) -> str:
        """Compute type of the transformer; raises ConfigError if the family does not compute in it."""
        legal = self.real.dtypes if self.real is not None else (FLOAT32,)
        # On a CPU bf16 is slower than fp32; a GPU without tensor cores for it is not worth a rule of its own.
        usual = legal[0] if model.is_on_gpu else FLOAT32
        chosen = model.dtype or usual
        if chosen not in legal:
            raise ConfigError(
                f"model.dtype is {chosen}, but {self.family} computes in {' or '.join(legal)}, because its activations "
                f"need their range and precision; set model.dtype to {usual}."
            )
        return chosen

    def size(self, asked: str | None) -> Size:
        """Size of the run's images; raises SizeError if the model cannot make it."""
        size = self.default_size if asked is None else Size.parse(asked)
        if self.world is not None and size != self.default_size:
            raise SizeError(
                f"{self.family} was pretrained at {self.default_size} only, not at {size}; set data.size to "
                f"{self.default_size}, or leave it out."
            )
        self.geometry.grid(size)
        return size

    def tokens(self, asked: str | None) -> int:
        """Number of image tokens at that size."""
        return self.geometry.tokens(self.size(asked))


def facts_of(name: str) -> ModelFacts:
    """Facts of any name that `sources.resolve` accepts."""
    return facts_of_source(resolve(name))


def facts_of_source(source: Source) -> ModelFacts:
    if source.kind is SourceKind.DIFFUSERS:
        return _in_folder(Path(source.location))
    if source.kind is SourceKind.RANDOM:
        return _random(FAMILIES[source.family], source.digest)
    if source.family in FAMILIES:
        return _trained(source)
    # Every model of a tiny family has the shapes of the shipped one.
    named = read_shapes(asset(f"weights/{source.family}.safetensors"))
    shapes, drawn = named.values(), world(source.family)
    return ModelFacts(
        family=source.family,
        digest=source.digest,
        heads=HEADS,
        geometry=Geometry(family=source.family, patch=PATCHES[source.family], vae_scale=1, latent_channels=3),
        default_size=drawn.size,
        parameters=sum(map(math.prod, shapes)),
        matrix_edges=sum(sum(shape) for shape in shapes if len(shape) == 2),
        shape=TransformerShape(
            structure=QWEN_IMAGE.blocks,
            width=named["img_in.weight"][0],
            heads=HEADS,
            blocks=sum(name.endswith("img_mlp.net.2.bias") for name in named),
        ),
        world=drawn,
    )


def _in_folder(folder: Path) -> ModelFacts:
    found = read_folder(folder)
    return ModelFacts(
        family=found.family.name,
        digest=found.digest,
        heads=found.heads,
        geometry=found.geometry,
        default_size=_default_size(found.family, found.geometry),
        parameters=found.components["transformer"].parameters,
        matrix_edges=found.lora_edges,
        shape=found.shape,
        vae_parameters=found.components["vae"].parameters,
        decoder=found.decoder,
        text_parameters=sum(
            size.parameters for name, size in found.components.items() if name.startswith("text_encoder")
        ),
        embeds_guidance=found.embeds_guidance,
        text_digest=found.text_digest,
        real=found.family,
    )


def _random(family: Family, digest: str) -> ModelFacts:
    settings = json.loads(asset(f"random/full/{family.name}.json").read_text())
    geometry = family.geometry(settings["transformer"], settings["vae"])
    return ModelFacts(
        family=family.name,
        digest=digest,
        heads=settings["transformer"]["num_attention_heads"],
        geometry=geometry,
        default_size=_default_size(family, geometry),
        parameters=settings["sizes"]["transformer"],
        matrix_edges=settings["sizes"]["lora_edges"],
        shape=TransformerShape.of(family.blocks, settings["transformer"]),
        vae_parameters=settings["sizes"]["vae"],
        decoder=DecoderShape.of(settings["vae"]),
        text_parameters=settings["sizes"]["text"],
        embeds_guidance=bool(settings["transformer"].get("guidance_embeds")),
        text_digest=digest,
        real=family,
    )


def _default_size(family: Family, geometry: Geometry) -> Size:
    """The family's usual size, or the largest square below it that a tiny model can make."""
    usual, most = family.default_size, geometry.most_patches
    edge = min(usual.height, most * geometry.multiple) if most else usual.height
    return usual if edge == usual.height else Size(edge, edge)


def _trained(source: Source) -> ModelFacts:
    """A run of a real family publishes what it trains; a new run needs the whole model."""
    base = base_of(source.run)
    raise InputError(
        f"{source.location} holds {'adapters' if source.has_adapters else 'a transformer'} of {base.location}, and a "
        "run trains from a whole model; write one with `spotlight export RUN --merged --complete`, and name its folder."
    )
