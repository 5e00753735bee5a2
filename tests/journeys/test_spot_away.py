"""Nodes at the on-demand price stand in for missing spot nodes, leave when these return, and are on the bill."""

from pathlib import Path

import pytest

from spotlight.control.ledger.audit import audit
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.core.events import NodeJoined, NodeLost, Record, Released, WorkerJoined
from spotlight.core.journal import read
from spotlight.core.work import Activity, SlotClass
from spotlight.folder import RunFolder
from spotlight.sim.controller import Ending
from spotlight.sim.simulate import Simulation, simulate
from spotlight.surface.projections import RunView
from spotlight.surface.simulating import Assumed, model_numerics, simulated_config
from spotlight.surface.status import status

AWAY_S, BACK_S, FALLBACK_S, BOOT_S = 200.0, 900.0, 300.0, 60.0
TRACE = f"""time_s,node,event,seconds
0,spot-1,up,0
0,spot-2,up,0
{AWAY_S:g},spot-1,kill,0
{AWAY_S:g},spot-2,kill,0
{BACK_S:g},spot-1,up,0
{BACK_S:g},spot-2,up,0
"""
SETTINGS = (
    *("cluster.reserved=1", "cluster.gang=1", "cluster.spot=2", "iterations=80", "eval.every=100", "eval.prompts=4"),
    *("rollout.prompts=4", "rollout.group_size=8", f"market.boot_s={BOOT_S:g}"),
)


def run(folder: Path, *settings: str) -> list[Record]:
    """Journal of a simulated run on two spot nodes that leave and return; the run outlasts the trace."""
    (folder / "market.csv").write_text(TRACE)
    profile, prices = Profile.load("h200-qwen-image-512"), PriceTable.load()
    assumed = Assumed(profile=profile, prices=prices, trace=str(folder / "market.csv"))
    config = simulated_config("words-large-nft", [*SETTINGS, *settings], assumed)
    path = folder / "run"
    path.mkdir()
    simulation = Simulation(
        config=config, recipe="words", profile=profile, numerics=model_numerics(config, None), prices=prices
    )
    assert simulate(simulation, RunFolder(path)).ending is Ending.FINISHED
    records = list(read(path / "journal"))
    assert audit(records).clean
    assert records[-1].at > BACK_S + 300
    return records


def stays(records: list[Record], name: str) -> list[tuple[float, float]]:
    """Start and end of each time that a node was paid for."""
    came = [r.at for r in records if isinstance(r.event, NodeJoined) and r.event.node.startswith(name)]
    gone = [r.at for r in records if isinstance(r.event, NodeLost) and r.event.node.startswith(name)]
    return list(zip(came, gone, strict=True))


def test_stand_ins_work_while_spot_nodes_are_missing_and_the_bill_shows_them(tmp_path: Path):
    records = run(tmp_path, f"market.fallback_s={FALLBACK_S:g}")
    works_again = next(
        r.at
        for r in records
        if isinstance(r.event, WorkerJoined) and r.event.slot_class is SlotClass.SPOT and r.at > BACK_S
    )
    assert works_again - BACK_S >= BOOT_S
    for name in ("stand-in-1", "stand-in-2"):
        ((came, gone),) = stays(records, name)
        assert came == pytest.approx(AWAY_S + FALLBACK_S, abs=1.0)
        assert works_again <= gone < works_again + 60
    view = RunView.of(records)
    bill = view.bill(PriceTable.load())
    (line,) = (line for line in bill.lines if line.stands_in)
    assert line.per_gpu_hour == pytest.approx(55.04 / 8)
    assert line.total_seconds == pytest.approx(
        sum(gone - came for n in "12" for came, gone in stays(records, f"stand-in-{n}"))
    )
    assert line.seconds[Activity.ROLLOUT] > 0
    assert line.seconds[Activity.START] >= 2 * BOOT_S
    assert status(view, PriceTable.load()).cost.stand_ins == pytest.approx(line.dollars)
    # No node was lost: each was drained and handed back its work.
    assert view.timeline.failures == 0
    given_back = {r.event.request: r.event for r in records if isinstance(r.event, Released) and r.at > works_again}
    assert all(released.redone == 0 for released in given_back.values())


def test_reserved_slot_continues_alone_without_a_fallback_time(tmp_path: Path):
    records = run(tmp_path)
    assert stays(records, "stand-in") == []
    assert not any(line.stands_in for line in RunView.of(records).bill(PriceTable.load()).lines)


def test_auto_rents_stand_ins_only_for_a_deadline_that_would_be_missed(tmp_path: Path):
    """Without stand-ins the run takes 0.40 h, with them 0.37 h."""
    ends = {}
    for name, hours in (("late", 0.38), ("in time", 0.6)):
        (tmp_path / name).mkdir()
        records = run(tmp_path / name, "market.fallback_s=auto", f"budget.max_hours={hours}")
        ends[name] = records[-1].at
        rented = [came for came, _ in stays(records, "stand-in")]
        assert bool(rented) is (name == "late")
        assert all(came >= AWAY_S + FALLBACK_S for came in rented)
    assert ends["late"] < 0.38 * 3600 < ends["in time"]


def test_auto_rents_nothing_that_the_money_does_not_cover(tmp_path: Path):
    records = run(tmp_path, "market.fallback_s=auto", "budget.max_hours=0.42", "budget.max_dollars=5")
    assert stays(records, "stand-in") == []
