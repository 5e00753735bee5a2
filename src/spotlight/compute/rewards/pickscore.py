"""`pickscore`: human preference by PickScore v1, a CLIP model trained on choices between two pictures of a prompt.

The score is the model's own logit, exp(logit_scale) times the cosine, over 26, as in flow_grpo, which scales it to
about 0 to 1. Long prompts are cut as in `clip.py`.
"""

import math

from spotlight.compute.rewards.clip import ClipScore
from spotlight.compute.rewards.protocol import Floats

SCALE = 26.0
TOKENIZER = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
"""The model that PickScore v1 was trained from: its tokenizer serves a copy of PickScore that has none."""


class PickScore(ClipScore):
    """PickScore v1 over 26, about 0 to 1; a longer prompt is cut at the encoder's end."""

    name = "pickscore"

    def _scaled(self, cosines: Floats) -> Floats:
        return cosines * (math.exp(float(self._model.logit_scale)) / SCALE)


def pickscore(*, source: str) -> PickScore:
    """PickScore over 26: human preference among pictures of a prompt, by the model of a folder or hub id."""
    return PickScore(source, TOKENIZER)
