"""The model card of an export, in Markdown: base, recipe, reward, held-out curve, cost, and how to load the files."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotlight import __version__
from spotlight.compute.data.worlds import world
from spotlight.compute.models.family_registry import Family
from spotlight.control.market.bill import HOUR_S
from spotlight.control.market.prices import PriceTable
from spotlight.surface.formats import count, dollars, score_name
from spotlight.surface.panels.score_panel import gain_sentence
from spotlight.surface.projections import RunView, ScoreInterval

CURVE = "curve.png"
PLAIN_YAML = re.compile(r"[A-Za-z][\w./:-]*\w")
"""Texts that need no quotes."""
Changes = Sequence[tuple[str, Any]]


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What the card says beside the run's records."""

    run: str
    base: str
    family: str
    real: Family | None
    """None for a tiny family."""
    weights: str
    """ema or last."""
    version: int
    lora: tuple[int, float] | None
    """Rank and alpha."""
    files: tuple[str, ...]
    """Names in the exported folder."""
    settings: Mapping[str, Any]
    changes: Changes
    """Settings that differ from the recipe's."""


def model_card(facts: CardFacts, view: RunView, prices: PriceTable) -> str:
    """The whole card."""
    name = view.headline()
    curve = view.curve(name) if name is not None else []
    parts = [
        _front_matter(facts),
        f"# {facts.run}\n\n{_summary(facts, view, name, curve)}",
        f"## Load it\n\n{_loading(facts)}",
        f"## Training\n\n{_training(facts, view, prices)}",
    ]
    if name is not None:
        parts.append(f"## Held-out score\n\n{_curve(name, curve, CURVE in facts.files)}")
    return "\n\n".join(parts) + "\n"


def draw_curve(name: str, curve: Sequence[tuple[int, ScoreInterval]], path: Path) -> None:
    """Draw the held-out score with its interval as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    iterations = [iteration for iteration, _ in curve]
    figure, axes = plt.subplots(figsize=(6, 3.4))
    lower, upper = [point.low for _, point in curve], [point.high for _, point in curve]
    axes.fill_between(iterations, lower, upper, alpha=0.2, linewidth=0)
    axes.plot(iterations, [point.value for _, point in curve], marker="o", markersize=3)
    axes.set_xlabel("iterations trained")
    axes.set_ylabel(f"held-out {score_name(name)}", parse_math=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _front_matter(facts: CardFacts) -> str:
    base = facts.base if PLAIN_YAML.fullmatch(facts.base) else json.dumps(facts.base)
    lines = ["---", f"base_model: {base}"]
    if facts.real is not None:
        tags = ["text-to-image", *(["lora"] if facts.lora else []), "spotlight"]
        lines += ["library_name: diffusers", "pipeline_tag: text-to-image", "tags:", *(f"- {tag}" for tag in tags)]
    return "\n".join([*lines, "---"])


def _summary(facts: CardFacts, view: RunView, name: str | None, curve: Sequence[tuple[int, ScoreInterval]]) -> str:
    what = "A LoRA" if facts.lora else "Weights"
    kind = "averaged" if facts.weights == "ema" else "last published"
    sentence = gain_sentence(name, curve) if name is not None else ""
    gain = f" {sentence[:1].upper()}{sentence[1:]}." if sentence else ""
    return (
        f"{what} for `{facts.base}` ({facts.family}), post-trained with reinforcement learning by Spotlight "
        f"{__version__}: the {kind} weights after {count(len(view.iterations), 'iteration')}.{gain}"
    )


def _loading(facts: CardFacts) -> str:
    if facts.real is None:
        return (
            f"`weights.safetensors` holds the whole weights of Spotlight's own family `{facts.family}`: start a run "
            "from it with `spotlight train RECIPE --model.name weights.safetensors`, score it with `spotlight evaluate "
            "weights.safetensors`, or draw with `spotlight sample weights.safetensors --prompt TEXT`."
        )
    pipeline, base = facts.real.pipeline, facts.base
    if "model_index.json" in facts.files:
        return _code(
            f"from diffusers import {pipeline}\n\n"
            f'pipeline = {pipeline}.from_pretrained("THIS_FOLDER")\n'
            'image = pipeline("a prompt").images[0]'
        )
    if facts.lora is None or "transformer" in facts.files:
        transformer = facts.real.transformer
        return _code(
            f"from diffusers import {pipeline}, {transformer}\n\n"
            f'transformer = {transformer}.from_pretrained("THIS_FOLDER", subfolder="transformer")\n'
            f'pipeline = {pipeline}.from_pretrained("{base}", transformer=transformer)\n'
            'image = pipeline("a prompt").images[0]'
        )
    code = _code(
        f"from diffusers import {pipeline}\n\n"
        f'pipeline = {pipeline}.from_pretrained("{base}")\n'
        'pipeline.load_lora_weights("THIS_FOLDER")\n'
        'image = pipeline("a prompt").images[0]'
    )
    return (
        f"In diffusers:\n\n{code}\n\nIn ComfyUI: copy `comfyui_lora.safetensors` to `models/loras`, and put the node "
        "*LoraLoaderModelOnly* with strength 1 between the model and the sampler."
    )


def _training(facts: CardFacts, view: RunView, prices: PriceTable) -> str:
    settings, bill = facts.settings, view.bill(prices)
    hours = sum(line.total_seconds for line in bill.lines) / HOUR_S
    rows = [
        ("base model", f"`{facts.base}`"),
        ("recipe", f"`{view.facts.recipe}`"),
        ("loss", settings["algorithm"]["kind"]),
        ("reward", _reward(facts)),
        ("weights", f"{facts.weights}, publication {facts.version}"),
        *([("LoRA", f"rank {facts.lora[0]}, alpha {facts.lora[1]:g}")] if facts.lora else []),
        ("iterations", f"{len(view.iterations)}"),
        ("GPU-hours", f"{hours:,.3f}"),
        ("cost", f"{dollars(bill.dollars)}, priced as if every slot were a GPU of {bill.table}, {bill.date}"),
        ("Spotlight", __version__),
    ]
    changed = "\n".join(f"- `{key}`: {_shown(value)}" for key, value in facts.changes) or "None."
    return f"{_table(('what', 'value'), rows)}\n\nSettings that differ from the recipe:\n\n{changed}"


def _reward(facts: CardFacts) -> str:
    reward = facts.settings["reward"]
    if reward.get("terms"):
        return ", ".join(f"{term['weight']:g} x {term['name']}" for term in reward["terms"])
    own = world(facts.family).reward if facts.real is None else "none"
    return str(reward.get("name") or own)


def _curve(name: str, curve: Sequence[tuple[int, ScoreInterval]], drawn: bool) -> str:
    rows = [
        (str(iteration), f"{point.value:.3f}", f"{point.low:.3f} to {point.high:.3f}") for iteration, point in curve
    ]
    picture = f"![{score_name(name)} by iteration]({CURVE})\n\n" if drawn else ""
    heads = ("iterations trained", score_name(name), "95 % interval")
    return f"{picture}Fixed prompts and seeds, the averaged weights.\n\n{_table(heads, rows)}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _shown(value: Any) -> str:
    return "unset" if value is None else f"`{value}`"
