"""Requests made from settings: disjoint seeds, and one start for a whole group where a recipe shares it."""

import pytest

from spotlight.compute.data.order import PromptOrder
from spotlight.compute.data.worlds import world
from spotlight.config import load_config
from spotlight.controller.rollouts import Samples, seeds_at
from spotlight.core.errors import ConfigError
from spotlight.core.types import SamplerKind
from spotlight.core.work import Work


def samples(recipe: str, *overrides: str, candidates: int | None = None) -> Samples:
    config = load_config(recipe, overrides)
    words = world("words")
    order = PromptOrder(words.prompts("train"), 0)
    return Samples(config.rollout, config.explore.noise, words.size, order, 0, config.explore.solver, candidates)


def test_seeds_of_two_positions_are_disjoint():
    assert not set(seeds_at(3, 1000)) & set(seeds_at(4, 1000))
    assert seeds_at(3, 2, skip=5) == seeds_at(3, 7)[5:]


def test_candidates_of_iterations_follow_one_another_in_the_order_and_trained_groups_do_among_themselves():
    made = samples("words-nft", "rollout.prompts=4", candidates=6)
    first, second = made.candidates(0), made.candidates(1)
    assert [candidate.position for candidate in (*first, *second)] == list(range(12))
    assert [candidate.number for candidate in second] == list(range(6))
    assert [*made.places(0), *made.places(1)] == list(range(8))
    assert samples("words-nft", "rollout.prompts=12").candidates(0) == [
        candidate._replace(number=place) for place, candidate in enumerate((*first, *second))
    ]


def test_candidate_keeps_its_start_and_window_whichever_group_it_becomes():
    path = ("explore.enabled=on", "explore.noise=path", "explore.steps=10", "rollout.prompts=4")
    made = samples("words-flow-grpo", *path, candidates=8)
    candidate = made.candidates(3)[6]
    (preview,) = made.previews(3, candidate, [7], steps=10, version=2)
    (kept,) = made.exact(Work.ROLLOUT, 3, 2, candidate, [7], version=3)
    assert (preview.group, kept.group) == (6, 2)
    assert preview.sample.shared_start == kept.sample.shared_start == seeds_at(candidate.position, 1)[0]
    assert preview.sample.sampling == kept.sample.sampling


def test_group_that_shares_its_start_keeps_it_whichever_seeds_are_rolled_out_audited_or_previewed():
    path = ("explore.enabled=on", "explore.noise=path", "explore.steps=10")
    made = samples("words-flow-grpo", *path)
    candidate = made.candidates(2)[1]
    kept = made.exact(Work.ROLLOUT, 2, 1, candidate, [7, 9], version=2)
    audited = made.exact(Work.AUDIT, 2, 1, candidate, [8], version=2)
    previewed = made.previews(2, candidate, [6, 7], steps=10, version=1)
    assert len({request.sample.shared_start for request in (*kept, *audited, *previewed)}) == 1
    assert kept[0].sample.shared_start is not None
    assert previewed[1].sample.sampling == kept[0].sample.sampling
    assert made.exact(Work.AUDIT, 2, 1, candidate, [], version=2) == []


def test_previews_by_initial_noise_start_where_their_rollouts_do():
    made = samples("words-nft")
    candidate = made.candidates(0)[0]
    (rollout,) = made.exact(Work.ROLLOUT, 0, 0, candidate, [5], version=0)
    (preview,) = made.previews(0, candidate, [5], steps=4, version=0)
    assert preview.sample.start == rollout.sample.start == 5
    assert preview.sample.sampling.steps == 4


@pytest.mark.parametrize("solver", ["ode", "ode2"])
def test_previews_are_drawn_by_the_solver_of_the_recipe_and_nothing_else_is(solver):
    made = samples("words-nft", f"explore.solver={solver}")
    candidate = made.candidates(0)[0]
    for steps, drawn_by in ((4, solver), (9, solver), (made.rollout.steps, "ode")):
        (preview,) = made.previews(0, candidate, [5], steps=steps, version=0)
        assert preview.sample.sampling.sampler is SamplerKind(drawn_by)
    for work in (Work.ROLLOUT, Work.AUDIT):
        (exact,) = made.exact(work, 0, 0, candidate, [5], version=0)
        assert exact.sample.sampling.sampler is SamplerKind.ODE


def test_solver_that_previews_cannot_have_is_refused():
    with pytest.raises(
        ConfigError, match=r"explore\.solver is ode2 but explore\.noise is path.*set explore\.solver to"
    ):
        load_config("words-nft", ["explore.noise=path", "explore.steps=10", "explore.solver=ode2"])
    with pytest.raises(ConfigError, match=r"explore\.solver to 'cps', but input should be 'ode' or 'ode2'"):
        load_config("words-nft", ["explore.solver=cps"])
