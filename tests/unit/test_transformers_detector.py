"""The detector for photographs, with a tiny randomly initialised model in a local folder."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from spotlight.compute.rewards.geneval.color_naming import GENEVAL_PALETTE, PaletteNamer
from spotlight.compute.rewards.geneval.detection import Thresholds
from spotlight.compute.rewards.geneval.geneval_rewards import GenEvalReward
from spotlight.compute.rewards.geneval.transformers_detector import TransformersDetector
from spotlight.core.errors import InputError
from spotlight.core.types import Clause, Prompt, SceneSpec


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import torch
    from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessorPil

    folder = tmp_path_factory.mktemp("detector")
    config = YolosConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=[32, 32],
        patch_size=8,
        num_detection_tokens=6,
        use_mid_position_embeddings=False,
        id2label={0: "dog", 1: "tv"},
        label2id={"dog": 0, "tv": 1},
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        YolosForObjectDetection(config).save_pretrained(folder)
    YolosImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


class OneColor:
    """A namer that sees one colour everywhere."""

    def __init__(self, color: str) -> None:
        self.version = f"one-color-{color}"
        self._color = color

    def __call__(self, crop: np.ndarray) -> dict[str, float]:
        return {self._color: 1.0}


def test_detections_of_a_local_folder(folder):
    detector = TransformersDetector(folder, batch_size=2, class_names={"tv": "television"})
    images = [np.full((40, 60, 3), value, dtype=np.uint8) for value in (0, 128, 255)]
    found = detector.detect(images)
    assert len(found) == 3
    assert detector.classes == {"dog", "television"}
    assert detector.thresholds == Thresholds(0.3, 0.9)
    flat = [d for detections in found for d in detections]
    assert flat
    assert {d.class_name for d in flat} <= detector.classes
    assert all(0.05 < d.confidence <= 1 for d in flat)
    assert all(-30 <= d.box.x0 < d.box.x1 <= 90 for d in flat)
    assert {d.color for d in found[0]} | {d.color for d in found[2]} == {"black", "white"}
    assert [d.confidence for d in detector.detect(images[:1])[0]] == pytest.approx(
        [d.confidence for d in found[0]], abs=1e-5
    )


def test_drives_the_reward_with_a_plugged_in_namer(folder):
    detector = TransformersDetector(folder, thresholds=Thresholds(default=0.05), namer=OneColor("teal"))
    images = [np.full((40, 60, 3), 90, dtype=np.uint8)]
    (name, *_) = {d.class_name for d in detector.detect(images)[0]}
    for color, right in (("teal", 1), ("red", 0)):
        prompt = Prompt(
            text="", scene=SceneSpec(tag="colors", include=(Clause(class_name=name, count=1, color=color),))
        )
        assert GenEvalReward(detector).score(images, [prompt]).components["strict"].tolist() == [right]


def test_version_follows_the_weights(folder, tmp_path):
    import torch
    from transformers import YolosForObjectDetection, YolosImageProcessorPil

    model = YolosForObjectDetection.from_pretrained(folder)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    model.save_pretrained(tmp_path)
    YolosImageProcessorPil.from_pretrained(folder).save_pretrained(tmp_path)
    assert TransformersDetector(folder).version == TransformersDetector(folder).version
    assert TransformersDetector(folder).version != TransformersDetector(tmp_path).version


def test_version_follows_thresholds_namer_and_class_names(folder):
    settings = [
        {},
        {"thresholds": Thresholds(default=0.05)},
        {"thresholds": Thresholds(counting=0.5)},
        {"namer": OneColor("teal")},
        {"namer": OneColor("red")},
        {"namer": PaletteNamer({"teal": (0, 128, 128)})},
        {"class_names": {"tv": "television"}},
        {"class_names": {"tv": "telly"}},
    ]
    versions = [TransformersDetector(folder, **setting).version for setting in settings]
    assert len(set(versions)) == len(settings)
    assert [TransformersDetector(folder, **setting).version for setting in settings] == versions


def test_version_of_equal_settings_written_otherwise_is_the_same(folder):
    plain = TransformersDetector(folder)
    spelt_out = TransformersDetector(
        folder, batch_size=3, thresholds=Thresholds(0.3, 0.9), namer=PaletteNamer(dict(GENEVAL_PALETTE)), class_names={}
    )
    assert spelt_out.version == plain.version
    names = {"tv": "television", "dog": "hound"}
    turned = dict(reversed(names.items()))
    one, other = (TransformersDetector(folder, class_names=order) for order in (names, turned))
    assert one.version == other.version
    names["dog"] = "cat"
    assert one.classes == {"hound", "television"}


def test_version_follows_the_image_processor(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "detector"))
    config = copy / "preprocessor_config.json"
    assert TransformersDetector(copy).version == TransformersDetector(folder).version
    config.write_text(json.dumps({**json.loads(config.read_text()), "image_mean": [0.5, 0.5, 0.5]}))
    assert TransformersDetector(copy).version != TransformersDetector(folder).version


def test_missing_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"does not exist.*config\.json"):
        TransformersDetector(tmp_path / "nowhere")
    with pytest.raises(InputError, match="No object-detection model could be loaded"):
        TransformersDetector(tmp_path)
