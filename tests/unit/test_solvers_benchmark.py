"""The benchmark of solvers, on hand-made rewards."""

import numpy as np
import pytest

from benchmarks.solvers import run as solvers
from spotlight.control.explore.fidelity import AuditedGroup, AuditedSeed, fidelity
from spotlight.control.explore.seeds import Preview, select
from spotlight.core.types import SamplerKind


def audited(previews: np.ndarray, exact: np.ndarray) -> list[AuditedGroup]:
    """The audit of these prompts in a run whose audit leaves out no seed."""
    groups = []
    for row in zip(previews, exact, strict=True):
        pairs = [AuditedSeed(*pair) for pair in zip(*row, strict=True)]
        kept = select([Preview(seed, pair.proxy) for seed, pair in enumerate(pairs)], len(pairs) // 4)
        groups.append(
            AuditedGroup(
                kept=tuple(pairs[seed] for seed in kept),
                audited=tuple(pair for seed, pair in enumerate(pairs) if seed not in kept),
                share=1.0,
                previewed=len(pairs),
            )
        )
    return groups


def test_solver_that_ranks_as_the_exact_rewards_do_captures_all_of_their_variance():
    draw = np.random.default_rng(1)
    exact, noise = draw.random((40, 16)), draw.random((40, 16))
    previews = {SamplerKind.ODE: noise, SamplerKind.ODE2: exact * 0.5 + 0.1}
    found = solvers.figures(solvers.Ranked(family="words", steps=4, exact=exact, previews=previews))
    assert found["words_4_captured_ode2"].value == pytest.approx(1.0)
    assert found["words_4_pearson_ode2"].value == pytest.approx(1.0)
    # An uninformed choice is a random one.
    assert found["words_4_payoff_ode"].value == pytest.approx(1.0, abs=0.2)
    assert abs(found["words_4_pearson_ode"].value) < 0.15
    gain = found["words_4_gain"]
    assert gain.value == pytest.approx(1 - found["words_4_captured_ode"].value)
    assert 0 < gain.low < gain.value < gain.high


def test_figures_are_those_of_a_run_with_a_full_audit():
    draw = np.random.default_rng(2)
    exact = draw.random((12, 16)) * draw.random((12, 1))
    previews = {solver: exact + draw.normal(0, scale, exact.shape) for solver, scale in (("ode", 0.3), ("ode2", 0.1))}
    by_kind = {SamplerKind(solver): rewards for solver, rewards in previews.items()}
    found = solvers.figures(solvers.Ranked(family="scenes", steps=5, exact=exact, previews=by_kind))
    for solver, rewards in previews.items():
        expected = fidelity(audited(rewards, exact))
        for short, name in (("payoff", "payoff"), ("captured", "captured_variance"), ("pearson", "pearson")):
            assert found[f"scenes_5_{short}_{solver}"].value == pytest.approx(expected[name])
