"""Exploration: which seeds are chosen and audited in each case, and that fidelity figures are correct."""

import math

import numpy as np
import pytest

from spotlight.config import load_config
from spotlight.control.explore.config import ExploreConfig
from spotlight.control.explore.fidelity import AuditedGroup, AuditedSeed, fidelity
from spotlight.control.explore.seeds import (
    Chosen,
    Preview,
    audit_key,
    audit_seeds,
    choose,
    largest_variance,
    most_varied,
    select,
    unselected,
)
from spotlight.core.errors import ConfigError
from spotlight.core.types import PromptId

FRESH = range(1000, 1100)


def previews(*rewards):
    return [Preview(seed, reward) for seed, reward in enumerate(rewards)]


def test_select_takes_the_ends_and_not_the_middle():
    assert select(previews(0.5, 0.1, 0.9, 0.4, 0.6, 0.0), 4) == (1, 2, 4, 5)


def test_select_from_skewed_rewards_takes_only_the_existing_outliers():
    rewards = [1.0] * 10 + [0.0, 0.1]
    # All sixes with both outliers vary equally; the smallest number of highest, none, decides.
    assert select(previews(*rewards), 6) == (0, 1, 2, 3, 10, 11)


def test_select_among_equal_rewards_goes_by_seed_whatever_the_order_of_arrival():
    binary = [Preview(seed, float(seed % 2)) for seed in range(12)]
    assert select(binary, 4) == select(list(reversed(binary)), 4) == (0, 2, 9, 11)


def test_select_never_takes_a_preview_without_a_finite_reward():
    assert select(previews(math.nan, 0.0, math.inf, 1.0, -math.inf, 0.5), 2) == (1, 3)


def test_select_sees_contrast_far_from_zero():
    # Squares of these rewards agree in all but their last bits.
    assert select(previews(1e9, 1e9 + 1e-3, 1e9 + 2e-3, 1e9 + 5e-4), 2) == (0, 2)


def test_largest_variance_of_halves_is_that_of_a_fair_coin():
    assert largest_variance([0.0] * 10 + [0.4] * 5 + [1.0] * 10, 8) == pytest.approx(0.25)


def test_choose_with_enough_previews_needs_no_fresh_seed():
    chosen = choose(previews(0.5, 0.1, 0.9, 0.4), 2, iter(()))
    assert chosen == Chosen((1, 2), 0)


def test_choose_with_too_few_previews_uses_all_of_them_and_fills_up():
    chosen = choose(previews(0.5, math.nan, 0.5), 4, FRESH)
    assert chosen == Chosen((0, 2, 1000, 1001), 2)
    assert chosen.previewed == (0, 2)


def test_choose_without_previews_is_all_fresh():
    assert choose([], 3, FRESH) == Chosen((1000, 1001, 1002), 3)


def test_choose_from_previews_that_do_not_differ_tries_fresh_seeds():
    assert choose(previews(*[0.7] * 9), 2, FRESH) == Chosen((1000, 1001), 2)


def test_choose_does_not_take_a_fresh_seed_that_was_chosen_already():
    assert choose(previews(0.1, 0.2), 3, [0, 1, 5]) == Chosen((0, 1, 5), 1)


def test_choose_counts_a_preview_that_arrived_twice_once():
    assert choose([Preview(3, 0.2), Preview(3, 0.2)], 2, FRESH) == Chosen((3, 1000), 1)


def test_choose_without_enough_fresh_seeds_names_their_count():
    with pytest.raises(ConfigError, match="1 previewed and only 1 fresh"):
        choose(previews(0.3), 4, [7])


def test_candidates_that_vary_most_are_rolled_out_in_their_order_and_those_without_a_reward_last():
    flat, wide, blind, narrow = previews(0.5, 0.5), previews(0.0, 1.0), previews(math.nan, math.inf), previews(0.4, 0.6)
    candidates = [flat, narrow, blind, [], wide]
    assert [most_varied(candidates, count, 2) for count in (1, 2, 3, 4)] == [(4,), (1, 4), (0, 1, 4), (0, 1, 2, 4)]


def test_candidates_are_compared_by_the_group_that_would_be_rolled_out_and_not_by_all_previews():
    outliers = previews(*[0.5] * 9, 0.1, 0.9)
    assert most_varied([previews(*[0.3, 0.7] * 5), outliers], 1, 2) == (1,)
    assert most_varied([previews(*[0.3, 0.7] * 5), outliers], 1, 10) == (0,)


def test_audit_draws_the_share_from_unselected_seeds_only_and_the_same_for_the_same_identity():
    seen = [Preview(seed, seed / 2000) for seed in range(2000)]
    chosen = choose(seen, 16, FRESH)
    left = unselected(seen, chosen)
    assert set(left).isdisjoint(chosen.seeds)
    key = audit_key(0, 3, PromptId("a"))
    drawn = audit_seeds(left, 0.1, key)
    assert set(drawn) <= set(left)
    assert len(drawn) == pytest.approx(0.1 * len(left), rel=0.25)
    assert drawn == audit_seeds(tuple(reversed(left)), 0.1, key)
    assert drawn != audit_seeds(left, 0.1, audit_key(0, 4, PromptId("a")))
    assert audit_seeds(left, 1.0, key) == left


def simulated(rng, rho, share, prompts=32, seeds=64, group=16):
    """Audited groups of a bivariate normal world, and the same world audited in full."""
    partly, fully = [], []
    for number in range(prompts):
        # Prompts differ in mean and scale, as words of different difficulty do.
        proxy = (1 + number % 3) * rng.standard_normal(seeds)
        noise = (1 + number % 3) * math.sqrt(1 - rho**2) * rng.standard_normal(seeds)
        exact = number + rho * proxy + noise
        pairs = [AuditedSeed(float(z), float(r)) for z, r in zip(proxy, exact, strict=True)]
        kept = set(select([Preview(s, pairs[s].proxy) for s in range(seeds)], group))
        rest = [s for s in range(seeds) if s not in kept]
        for audits, probability in ((partly, share), (fully, 1.0)):
            drawn = [pairs[s] for s in rest if rng.random() < probability]
            audits.append(
                AuditedGroup(
                    kept=tuple(pairs[s] for s in sorted(kept)),
                    audited=tuple(drawn),
                    share=probability,
                    previewed=seeds,
                )
            )
    return fidelity(partly), fidelity(fully)


@pytest.mark.parametrize("rho", [0.3, 0.85])
def test_fidelity_of_a_small_audit_agrees_on_average_with_that_of_all_seeds(rho):
    rng = np.random.default_rng(5)
    worlds = [simulated(rng, rho, share=0.1) for _ in range(60)]
    for name, tolerance in (("pearson", 0.03), ("spearman", 0.03), ("payoff", 0.12)):
        small = np.mean([partly[name] for partly, _ in worlds])
        whole = np.mean([fully[name] for _, fully in worlds])
        assert small == pytest.approx(whole, abs=tolerance), name
    assert np.mean([partly["pearson"] for partly, _ in worlds]) == pytest.approx(rho, abs=0.03)


def test_fidelity_of_a_known_world_is_what_its_model_says():
    _, fully = simulated(np.random.default_rng(6), 0.5, share=1.0, prompts=200)
    assert fully["pearson"] == pytest.approx(0.5, abs=0.03)
    # Keeping 16 of 64 raises the proxy's variance 2.89-fold, of which the exact reward takes over rho^2.
    assert fully["payoff"] == pytest.approx(0.75 + 0.25 * 2.89, abs=0.15)


def test_fidelity_of_a_perfect_preview_captures_everything():
    figures = simulated(np.random.default_rng(7), 1.0, share=1.0)[1]
    assert figures["captured_variance"] == pytest.approx(1)
    assert figures["spearman"] == pytest.approx(1)
    assert figures["payoff"] > 2.5


def test_fidelity_of_uninformative_previews_shows_no_gain():
    figures = simulated(np.random.default_rng(8), 0.0, share=1.0, prompts=200)[1]
    assert figures["payoff"] == pytest.approx(1, abs=0.05)
    assert figures["spearman"] == pytest.approx(0, abs=0.03)


def skewed(rng, share, prompts=400, seeds=64, group=16):
    """Previews that are exact, of prompts of which one seed in eight fails: half of the kept seeds do.

    By hand: 8 of 64 fail and all of them are kept, so the kept mean is 0.5 and the prompt's 0.875; its std is 0.331 by
    the unbiased variance, 64 * 0.875 * 0.125 / 63.
    """
    exact = np.array([0.0] * (seeds // 8) + [1.0] * (seeds - seeds // 8))
    groups = []
    for _ in range(prompts):
        pairs = [AuditedSeed(float(reward), float(reward)) for reward in rng.permutation(exact)]
        kept = set(select([Preview(seed, pair.proxy) for seed, pair in enumerate(pairs)], group))
        audited = [pair for seed, pair in enumerate(pairs) if seed not in kept and rng.random() < share]
        chosen = tuple(pairs[seed] for seed in sorted(kept))
        groups.append(AuditedGroup(kept=chosen, audited=tuple(audited), share=share, previewed=seeds))
    return fidelity(groups)


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_fidelity_measures_how_far_selected_seeds_are_from_their_prompt(share):
    figures = skewed(np.random.default_rng(9), share)
    expected = (0.5 - 0.875) / math.sqrt(64 * 0.875 * 0.125 / 63)
    assert figures["kept_shift"] == pytest.approx(expected, rel=0.05 if share < 1 else 1e-9)
    assert figures["kept_shift_rms"] == pytest.approx(-expected, rel=0.05 if share < 1 else 1e-9)


def test_fidelity_of_symmetric_rewards_has_no_shift_on_average_and_its_chance_is_not_counted():
    """Kept seeds of a normal world are as far above as below: any shift comes from the draw of the seeds."""
    rng = np.random.default_rng(10)
    worlds = [simulated(rng, 0.85, share=0.1) for _ in range(40)]
    assert np.mean([partly["kept_shift"] for partly, _ in worlds]) == pytest.approx(0, abs=0.03)
    small = np.mean([partly["kept_shift_rms"] ** 2 for partly, _ in worlds])
    whole = np.mean([fully["kept_shift_rms"] ** 2 for _, fully in worlds])
    assert small == pytest.approx(whole, abs=0.03)


def test_fidelity_without_audit_or_contrast_leaves_out_unknown_figures():
    kept = (AuditedSeed(0.0, 0.1), AuditedSeed(1.0, 0.9))
    nothing_audited = AuditedGroup(kept=kept, audited=(), share=0.1, previewed=8)
    assert fidelity([nothing_audited]) == {"pairs": 2.0, "audited": 0.0}
    # The mean of three of these is another number.
    same = 5.430101370403394
    flat = AuditedGroup(
        kept=(AuditedSeed(0.0, same), AuditedSeed(1.0, same)), audited=(AuditedSeed(0.5, same),), share=1.0, previewed=3
    )
    assert fidelity([flat]) == {"pairs": 3.0, "audited": 1.0}
    assert fidelity([]) == {"pairs": 0.0, "audited": 0.0}


def test_fidelity_treats_a_sample_without_reward_as_absent():
    whole = AuditedGroup(
        kept=(AuditedSeed(0.0, 0.1), AuditedSeed(1.0, 0.9)),
        audited=(AuditedSeed(0.5, 0.4), AuditedSeed(0.6, 0.6)),
        share=1.0,
        previewed=4,
    )
    broken = AuditedGroup(kept=(*whole.kept, AuditedSeed(0.2, math.nan)), audited=whole.audited, share=1.0, previewed=4)
    assert fidelity([broken]) == fidelity([whole])


def test_explore_is_on_with_nft_and_off_with_flow_grpo_by_default():
    assert [ExploreConfig().is_on(loss) for loss in ("nft", "flow_grpo")] == [True, False]
    assert ExploreConfig(enabled="on").is_on("flow_grpo")
    assert not ExploreConfig(enabled="off").is_on("nft")


def test_explore_with_the_same_arm_twice_is_refused():
    with pytest.raises(ConfigError, match="each once"):
        ExploreConfig(arms=(4, 4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidates": 2.0, "plan": "bandit"}, "set explore.plan to fixed"),
        ({"scouts": 4}, "explore.candidates above 1"),
        ({"scouts": 8, "seeds": 8, "candidates": 2.0}, "explore.seeds above"),
    ],
)
def test_candidates_that_cannot_be_chosen_among_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        ExploreConfig(**changes)


def test_scouts_that_make_no_group_are_refused():
    candidates = ("explore.candidates=2", "explore.scouts=4")
    with pytest.raises(ConfigError, match=r"at least 5, or to 0"):
        load_config("words-nft", (*candidates, "rollout.group_size=5"))
    assert load_config("words-nft", (*candidates, "rollout.group_size=4")).explore.scouts == 4
    assert load_config("words-nft", (*candidates, "explore.enabled=off", "rollout.group_size=5")).explore.scouts == 4


def test_scouts_save_previews_of_candidates_that_are_given_up():
    assert ExploreConfig(seeds=16).planned_previews(8) == 8 * 16
    assert ExploreConfig(seeds=16, candidates=1.5).planned_previews(8) == 12 * 16
    assert ExploreConfig(seeds=16, candidates=1.5, scouts=4).planned_previews(8) == 12 * 4 + 8 * 12
