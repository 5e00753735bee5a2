"""`benchmarks/headline/`, `--curves`: clocks of modelled runs with the scores of real ones."""

import json
from argparse import Namespace

import msgspec
import pytest

from benchmarks.headline.cells import Cell
from benchmarks.headline.market_runs import read_cells
from benchmarks.headline.real_curves import RealCurve, RealCurves, joined, present_merged, read_curves, run_clocks
from benchmarks.lib import merge
from spotlight.core.errors import InputError

OURS, BASELINE = "spotlight-fixed", "reserved-only"
SETUPS = (BASELINE, "spot-no-explore", "explore-inline", "reserved-explore", "on-demand-explore", OURS, "spotlight")
SMALL = (
    *("iterations=4", "rollout.prompts=16", "eval.prompts=2", "eval.every=2", "market.boot_s=5"),
    *("explore.seeds=16", "explore.precision=exact"),
)
EVALUATED = (0, 2, 4)


@pytest.fixture(scope="module")
def args(tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """Arguments of a run whose clocks are simulated: two seeds, machines lost in mid-run."""
    folder = tmp_path_factory.mktemp("clocks")
    lossy = "\n".join(f"{at},{nodes}" for at, nodes in [(0, 8), (20, 2), (40, 6), (60, 1), (90000, 1)])
    (folder / "lossy.csv").write_text(f"t_s,n\n{lossy}\n")
    given = Namespace(
        family=["words-large"], seeds=[5, 6], profiles=["h200-qwen-image-512"], traces=[f"{folder}/lossy.csv"],
        setups=SETUPS, numerics="real", out=folder / "cells", device="cpu", remember=None, same_batches=False,
        overrides=SMALL, jobs=1, ours=OURS, numbers="", curves=[folder / "result.json"], json=False,
    )  # fmt: skip
    run_clocks(given)
    return given


def score(setup: str, seed: int, iteration: int) -> float:
    return 0.1 * seed + 0.01 * iteration * (2 if setup == OURS else 1)


def real_of(clocks: list[Cell], **changes: int) -> RealCurves:
    previews = {cell.setup: cell.previews for cell in clocks} | changes
    curves = {
        ("words-large", setup, seed): RealCurve(
            tuple((at, score(setup, seed, at)) for at in EVALUATED), previews[setup]
        )
        for setup in (BASELINE, OURS)
        for seed in (5, 6)
    }
    return RealCurves("elsewhere", curves)


def test_setups_with_fixed_plans_have_real_scores_and_their_own_clocks(args):
    clocks = read_cells(args.out)
    assert max(cell.losses for cell in clocks) > 3
    assert {(cell.setup, cell.seed) for cell in clocks if cell.seed == 6} == {
        (setup, 6) for setup in SETUPS if setup not in (BASELINE, "spot-no-explore")
    }, "setups that do not explore have one clock"
    found, left_out = joined(clocks, real_of(clocks), OURS)
    assert {(cell.setup, cell.seed) for cell in found} == {
        (setup, seed) for setup in SETUPS if setup != "spotlight" for seed in (5, 6)
    }
    assert "depends on its machines" in left_out["spotlight"], "the bandit plans by the clock"
    assert left_out["pipelined"] == "did not run"
    for cell in found:
        kind = BASELINE if cell.setup in (BASELINE, "spot-no-explore") else OURS
        assert [point.score for point in cell.points] == [score(kind, cell.seed, at) for at in EVALUATED]
        assert cell.numerics == "real"
    hours = {cell.setup: cell.points[-1].hours for cell in found if cell.seed == 5}
    assert hours == {cell.setup: cell.points[-1].hours for cell in clocks if cell.seed == 5 and cell.setup in hours}
    assert hours[BASELINE] > hours["spot-no-explore"]
    assert hours["reserved-explore"] > hours[OURS]


def test_merged_result_says_where_scores_and_clocks_were_computed(args, tmp_path):
    clocks = read_cells(args.out)
    stored = [
        {"family": family, "setup": setup, "seed": seed, "previews": curve.previews,
         "curve": [[at, 9.9, value] for at, value in curve.scores]}
        for (family, setup, seed), curve in real_of(clocks).of.items()
    ]  # fmt: skip
    args.curves[0].write_text(json.dumps({"computed": ["abc on a GPU"], "remembered": "def", "cells": stored}))
    out = tmp_path / "headline"
    present_merged(Namespace(**{**vars(args), "merge": sorted(args.out.glob("*.json")), "out": out}))
    result = json.loads(out.with_suffix(".json").read_text())
    assert result["scores"] == "abc on a GPU; def"
    assert result["computed"] == sorted({f"{cell.commit} on {cell.hardware}" for cell in clocks})
    assert "hours and slot-hours were simulated where `computed` says" in result["clocks"]
    assert {"spotlight", "pipelined"} <= result["left_out"].keys()
    assert {"speedup_vs_reserved_only", "speedup_vs_reserved_explore", "cost_ratio_vs_on_demand_explore"} <= result[
        "figures"
    ].keys()
    (one,) = [cell for cell in result["cells"] if (cell["setup"], cell["seed"]) == ("reserved-explore", 6)]
    reserved, spot = map(float, one["slot_hours"][-1].split(","))
    assert (reserved, spot) == (pytest.approx(one["reserved_slot_hours"], abs=1e-3), 0.0)
    assert len(one["slot_hours"]) == len(one["curve"]) == len(EVALUATED)
    assert read_curves([out.with_suffix(".json")]).origin == "abc on a GPU; def", (
        "a result of a result keeps its origin"
    )


def test_scores_of_other_settings_or_seeds_are_refused(args):
    clocks = read_cells(args.out)
    with pytest.raises(InputError, match="the settings differ"):
        joined(clocks, real_of(clocks, **{OURS: 1}), OURS)
    short = real_of(clocks)
    with pytest.raises(InputError, match="no real curve of spotlight-fixed in words-large with seed 6"):
        joined(clocks, short._replace(of={key: each for key, each in short.of.items() if key[2] == 5}), OURS)
    with pytest.raises(InputError, match="cannot be compared with reserved-only"):
        joined([cell for cell in clocks if cell.setup != BASELINE], real_of(clocks), OURS)


def test_curves_are_read_from_cells_with_real_numbers_that_agree(args, tmp_path):
    (cell,) = [each for each in read_cells(args.out) if each.setup == BASELINE]
    real = msgspec.structs.replace(cell, numerics="real")
    merge.write(tmp_path / "one.json", real)
    merge.write(tmp_path / "modelled.json", msgspec.structs.replace(cell, setup=OURS))
    found = read_curves([tmp_path])
    assert list(found.of) == [("words-large", BASELINE, 5)]
    assert found.of["words-large", BASELINE, 5].scores[-1] == (4, cell.points[-1].score)
    merge.write(tmp_path / "two.json", msgspec.structs.replace(real, profile="other", points=real.points[:-1]))
    with pytest.raises(InputError, match="depend on the machines"):
        read_curves([tmp_path])
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(InputError, match="no curves"):
        read_curves([tmp_path / "no.json"])
