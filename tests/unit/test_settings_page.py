"""The reference of settings has every key with its type, default and meaning, and is the one that the code makes."""

import re

import pytest
import settings_page
from document_commands import KEYS

PAGE = settings_page.page()


def row_of(key: str) -> str:
    (row,) = re.findall(rf"^\| `{re.escape(key)}` \|.*$", PAGE, re.MULTILINE)
    return row


def test_the_committed_page_is_what_the_classes_of_the_settings_make():
    assert settings_page.PAGE.read_text() == PAGE, "run `python docs/tools/settings_page.py`"


def test_every_key_of_a_recipe_is_on_the_page_with_a_meaning():
    described = dict(settings_page.keys())
    assert set(described) == KEYS
    assert [key for key, meaning in described.items() if not meaning] == []
    missing = [key for key in KEYS if f"| `{key}` |" not in PAGE and f"# {key}" not in PAGE]
    assert missing == []


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("rollout.steps", "integer (at least 1) | `10` | Denoising steps."),
        ("train.ema_decay", "number (at least 0, below 1) | `0.9` |"),
        ("model.dtype", "`bfloat16`, `float16`, `float32` or unset | unset |"),
        ("reward.terms.name", "text | required |"),
        ("output.journal.sync", "`never`: At the operating system's discretion"),
        ("data.size", "unset: the model's usual size"),
    ],
)
def test_a_setting_has_its_type_limits_default_and_values(key, shown):
    assert shown in row_of(key)


def test_a_combination_that_is_refused_is_listed_with_its_section():
    section = PAGE.partition("\n## pipeline\n")[2].partition("\n## ")[0]
    assert "- pipeline.gap is on but algorithm.advantage.std is iteration, and such advantages need" in section
