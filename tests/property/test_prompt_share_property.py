"""Held-out prompts by share: each text is in one set, whatever prompts are beside it."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import assume, given
from hypothesis import strategies as st

from spotlight.compute.data.config import DataConfig
from spotlight.compute.data.prompts import RunPrompts, run_prompts
from spotlight.core.errors import PromptError

texts = st.lists(st.text("abcdefgh ", min_size=1).map(str.strip).filter(bool), min_size=2, max_size=40)


def divided(lines: list[str], share: float) -> RunPrompts | None:
    """The prompts of a file with these lines; None if a set would be empty."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "p.txt"
        file.write_text("\n".join(lines))
        try:
            return run_prompts(DataConfig(prompts=str(file), held_out=share), None)
        except PromptError:
            return None


@given(texts, st.floats(0.05, 0.95))
def test_share_puts_every_line_in_exactly_one_set(lines, share):
    found = divided(lines, share)
    assume(found is not None)
    trained, held_out = [prompt.text for prompt in found.training], [prompt.text for prompt in found.held_out]
    assert sorted(trained + held_out) == sorted(lines)
    assert not set(trained) & set(held_out)


@given(texts, texts, st.floats(0.05, 0.95))
def test_prompt_stays_in_its_set_when_others_are_added(lines, added, share):
    before, after = divided(lines, share), divided(added + lines, share)
    assume(before is not None)
    assert after is not None
    assert set(before.training) <= set(after.training)
    assert set(before.held_out) <= set(after.held_out)


@given(texts, st.floats(0.05, 0.5), st.floats(0.5, 0.95))
def test_larger_share_holds_out_the_same_prompts_and_more(lines, smaller, larger):
    less, more = divided(lines, smaller), divided(lines, larger)
    assume(less is not None and more is not None)
    assert set(less.held_out) <= set(more.held_out)
