"""One-hot text: tokens beside positions, one bucket with its mask, and errors that name what is wrong."""

import pytest
import torch
from tiny_models import SIZE, SPEC, TEXT, tiny_adapter

from spotlight.compute.data import scenes, words
from spotlight.compute.models.families import SCENES, WORDS
from spotlight.compute.models.text_table import TextTable
from spotlight.core.errors import PromptError, SizeError
from spotlight.core.types import Prompt, Size

LETTERS = len(TEXT.tokens)


def quoted(word: str) -> Prompt:
    return Prompt(text=f'the word "{word}"')


def test_encoding_is_one_token_and_one_position_per_row():
    embeds = TEXT.encode(quoted("cab")).embeds
    assert embeds.shape == (3, TEXT.dimension) == (3, LETTERS + 1 + TEXT.width)
    assert embeds.nonzero().tolist() == [
        [0, 2], [0, LETTERS + 1], [1, 0], [1, LETTERS + 2], [2, 1], [2, LETTERS + 3],
    ]  # fmt: skip
    assert set(embeds.unique().tolist()) == {0.0, 1.0}


def test_null_is_a_token_that_no_prompt_has():
    null = TEXT.null().embeds
    assert null.nonzero().tolist() == [[0, LETTERS], [0, LETTERS + 1]]
    assert all(not TEXT.encode(quoted(letter)).embeds[:, LETTERS].any() for letter in TEXT.tokens)


def test_prompts_that_differ_in_order_only_are_encoded_differently():
    """As sets of rows, not only as sequences: attention over the text does not see the order of its rows."""
    one, other = ({tuple(row) for row in TEXT.encode(quoted(word)).embeds.tolist()} for word in ("ab", "ba"))
    assert one & other == set()


def test_prompt_of_full_width_is_taken_and_a_longer_one_refused():
    assert TEXT.encode(quoted("a" * TEXT.width)).embeds.shape[0] == TEXT.width
    with pytest.raises(PromptError, match=r"has 7 tokens but this model takes 1 to 6, .*; shorten it"):
        TEXT.encode(quoted("a" * (TEXT.width + 1)))


def test_prompt_longer_than_the_pictures_hold_is_refused_though_the_table_is_wider():
    """`words` draws 7 letters; the other 5 of its 12 positions are padding."""
    assert WORDS.text.encode(quoted("letters")).embeds.shape == (7, WORDS.text.dimension)
    assert (WORDS.text.longest, WORDS.text.width) == (words.MAX_LETTERS, 12)
    with pytest.raises(PromptError, match=r"eightish.* has 8 tokens but .* takes 1 to 7, .*; shorten it"):
        WORDS.text.encode(quoted("eightish"))


def test_table_with_more_tokens_than_its_width_is_refused():
    with pytest.raises(ValueError, match="no positions"):
        TextTable(tokens=("a",), width=3, longest=4, tokenise=lambda prompt: prompt.text.split())


def test_prompt_without_tokens_is_refused():
    table = TextTable(tokens=("a",), width=3, longest=3, tokenise=lambda prompt: prompt.text.split())
    with pytest.raises(PromptError, match="has 0 tokens"):
        table.encode(Prompt(text="   "))


@pytest.mark.parametrize(("word", "wrong"), [("bad!", "!"), ("Bad", "B"), ("zed", "z"), ("b d", " "), ("é", "é")])
def test_prompt_with_an_unknown_character_is_refused_by_name(word, wrong):
    with pytest.raises(PromptError, match=f"contains '{wrong}', which this model's encoder lacks"):
        TEXT.encode(quoted(word))


def test_scene_prompt_with_a_misspelt_word_gets_a_suggestion():
    with pytest.raises(PromptError, match="did you mean 'circle'"):
        SCENES.text.encode(Prompt(text="a photo of a cirle"))


def test_every_shipped_prompt_can_be_encoded():
    for spec, world in ((WORDS, words), (SCENES, scenes)):
        for split in ("train", "test"):
            assert all(spec.text.encode(prompt).embeds.any() for prompt in world.prompts(split))


def test_collated_batch_has_the_table_width_and_a_mask_of_lengths():
    adapter = tiny_adapter()
    batch = adapter.collate([*adapter.encode([quoted("a"), quoted("cabbed"), quoted("fed")]), adapter.unconditional()])
    assert batch.embeds.shape == (4, TEXT.width, TEXT.dimension)
    assert batch.mask.dtype == torch.bool
    assert batch.mask.sum(1).tolist() == [1, 6, 3, 1]
    assert batch.mask.int().diff(dim=1).max() <= 0
    assert not batch.embeds[~batch.mask].any()
    assert torch.equal(batch.embeds[2, :3], TEXT.encode(quoted("fed")).embeds)


def test_collated_width_does_not_depend_on_the_batch():
    adapter = tiny_adapter()
    assert adapter.collate(adapter.encode([quoted("a")])).embeds.shape[1] == TEXT.width


def test_latent_shape_is_of_the_pretrained_size_only():
    adapter = tiny_adapter()
    assert adapter.latent_shape(SIZE) == (6, 192)
    with pytest.raises(SizeError, match="16x24 only, not at 32x24"):
        adapter.latent_shape(Size(32, 24))


def test_images_survive_encoding_and_decoding():
    images = torch.randint(0, 256, (2, SIZE.height, SIZE.width, 3), generator=torch.Generator().manual_seed(0))
    adapter = tiny_adapter()
    latents = adapter.encode_images(images.to(torch.uint8))
    assert latents.shape == (2, *adapter.latent_shape(SIZE))
    assert latents.min() >= -1
    back = (adapter.decode(latents, SPEC.size) * 255).round().permute(0, 2, 3, 1)
    assert torch.equal(back.long(), images)


@torch.no_grad()
def test_velocity_points_from_the_predicted_picture_down_to_small_sigmas():
    """x - sigma v is the model's picture, so one Euler step to 0 lands on it exactly."""
    adapter = tiny_adapter()
    cond = adapter.collate(adapter.encode([quoted("fed")] * 4))
    x = torch.randn(1, *adapter.latent_shape(SIZE), generator=torch.Generator().manual_seed(0)).expand(4, -1, -1)
    sigma_B = torch.tensor([1.0, 0.5, 0.05, 0.01])
    v = adapter.velocity(x, sigma_B, cond, None, 1.0, SIZE)
    assert v.dtype == torch.float32
    assert torch.isfinite(v).all()
    picture = adapter.transformer(
        hidden_states=x,
        encoder_hidden_states=cond.embeds,
        encoder_hidden_states_mask=cond.mask,
        timestep=sigma_B,
        img_shapes=[[(1, 2, 3)]] * 4,
        return_dict=False,
    )[0]
    torch.testing.assert_close((x - sigma_B.reshape(-1, 1, 1) * v), picture, rtol=0, atol=1e-5)
