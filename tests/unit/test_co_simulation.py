"""Co-simulation: real numbers in virtual time, computed once for all setups."""

from pathlib import Path

import pytest

from spotlight.compute.rewards.in_process import InProcessScorer
from spotlight.config import RunConfig, load_config
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.core.errors import InputError
from spotlight.core.events import Compared, Evaluated, Previewed, StepCommitted
from spotlight.core.journal import read
from spotlight.folder import RunFolder
from spotlight.sim.memory import Memory, subject_of
from spotlight.sim.real import RealNumerics
from spotlight.sim.simulate import Simulation, simulate, simulated

PROFILE = Profile.load("h200-qwen-image-512")
SMALL = (
    "iterations=2",
    "rollout.prompts=2",
    "rollout.group_size=4",
    "rollout.steps=3",
    "eval.every=2",
    "eval.prompts=4",
    "eval.steps=3",
    "explore.seeds=8",
    "explore.steps=2",
    "train.micro_batch=8",
)


def config(setup: str, *changes: str) -> RunConfig:
    return simulated(load_config(f"words-nft+{setup}", [*SMALL, *changes]), PROFILE)


def numerics(memory: Memory | None = None) -> RealNumerics:
    return RealNumerics(config("reserved-only"), InProcessScorer(), memory or Memory())


def run(setup: str, numbers: RealNumerics, folder: Path, *changes: str) -> RunFolder:
    run_folder = RunFolder(folder / setup)
    run_folder.path.mkdir(parents=True)
    simulation = Simulation(
        config=config(setup, *changes), recipe=setup, profile=PROFILE, numerics=numbers, prices=PriceTable.load(None)
    )
    simulate(simulation, run_folder)
    return run_folder


def rewards(folder: RunFolder) -> list[float]:
    """All rewards that were compared or evaluated, in order."""
    found: list[float] = []
    for record in read(folder.journal):
        match record.event:
            case Compared() as compared:
                found += [reward for group in compared.rewards for reward in group]
            case Evaluated() as evaluated:
                found.append(evaluated.scores["reward"][0])
    return found


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> tuple[RealNumerics, RunFolder]:
    """Numbers that other tests share, and the run that they were computed for."""
    numbers = numerics(Memory(subject=subject_of(config("reserved-only"))))
    return numbers, run("reserved-only", numbers, tmp_path_factory.mktemp("first"))


def test_setups_without_exploration_share_one_learning_curve_and_differ_in_time(first, tmp_path):
    numbers, alone = first
    misses = numbers.memory.misses
    with_spot = run("spot-no-explore", numbers, tmp_path)
    assert numbers.memory.misses == misses
    assert rewards(alone) == rewards(with_spot)
    seconds = [[record.at for record in read(folder.journal)][-1] for folder in (alone, with_spot)]
    assert seconds[1] != seconds[0]


def test_training_on_parts_shares_the_learning_curve_of_training_on_the_whole(first, tmp_path):
    numbers, whole = first
    misses = numbers.memory.misses
    parted = run("spot-no-explore", numbers, tmp_path, "pipeline.gap=true")
    assert numbers.memory.misses == misses
    assert rewards(parted) == rewards(whole)


@pytest.mark.slow
def test_a_run_with_another_setup_gets_the_numbers_that_it_gets_alone(first, tmp_path):
    shared, other = first
    after = rewards(run("spotlight-fixed", shared, tmp_path / "shared"))
    alone = rewards(run("spotlight-fixed", numerics(), tmp_path / "alone"))
    assert after == pytest.approx(alone, abs=1e-4)
    assert after != pytest.approx(rewards(other), abs=1e-4)


def preview_rewards(folder: RunFolder) -> list[float]:
    """Rewards of the previews of the first exploration, by candidate and seed."""
    batches = [record.event for record in read(folder.journal) if isinstance(record.event, Previewed)]
    first = [batch for batch in batches if batch.iteration == batches[0].iteration]
    rows = [row for each in first for row in zip(each.groups, each.seeds, each.rewards, strict=True)]
    return [reward for _, _, reward in sorted(rows)]


def test_previews_in_fp8_have_scores_of_their_own_and_rollouts_have_not(first, tmp_path):
    numbers, _ = first
    exact = run("spotlight-fixed", numbers, tmp_path / "exact")
    rounded = run("spotlight-fixed", numbers, tmp_path / "rounded", "explore.precision=fp8")
    assert len(preview_rewards(exact)) == len(preview_rewards(rounded)) == 16
    differing = [one != other for one, other in zip(preview_rewards(exact), preview_rewards(rounded), strict=True)]
    assert sum(differing) >= 8
    assert preview_rewards(rounded) == pytest.approx(preview_rewards(exact), abs=0.3)
    # Before the first selection both roll out the same samples.
    assert compared(rounded)[0] == compared(exact)[0]
    misses = numbers.memory.misses
    again = run("spotlight-fixed", numbers, tmp_path / "again")
    assert (preview_rewards(again), rewards(again)) == (preview_rewards(exact), rewards(exact))
    assert numbers.memory.misses == misses


def compared(folder: RunFolder) -> list[tuple[tuple[float, ...], ...]]:
    return [record.event.rewards for record in read(folder.journal) if isinstance(record.event, Compared)]


AHEAD = ("pipeline.asynchrony=true", "deterministic=true", "cluster.gang=1")


def stale_shares(folder: RunFolder) -> dict[int, float]:
    steps = [record.event for record in read(folder.journal) if isinstance(record.event, StepCommitted)]
    return {step.step: step.figures["stale_share"] for step in steps if "stale_share" in step.figures}


@pytest.mark.slow
def test_an_asynchronous_run_draws_with_the_weights_before_and_gets_the_numbers_that_it_gets_alone(first, tmp_path):
    shared, fresh = first
    beside = run("spot-no-explore", shared, tmp_path / "beside", *AHEAD)
    alone = run("spot-no-explore", numerics(), tmp_path / "alone", *AHEAD)
    assert rewards(beside) == pytest.approx(rewards(alone), abs=1e-4)
    assert rewards(beside) != pytest.approx(rewards(fresh), abs=1e-4)
    # The first update of the second iteration is of the one group that is stale.
    assert stale_shares(beside) == {2: 1.0, 3: 0.0}
    assert stale_shares(fresh) == {}


@pytest.mark.parametrize(("rate", "moves"), [("1.0e-3", True), ("1.0e-30", False)])
def test_held_out_scores_move_as_far_as_the_weights_are_trained(tmp_path, rate, moves):
    settings = simulated(
        load_config("words-nft+reserved-only", [*SMALL, "iterations=1", "eval.every=1", f"train.lr={rate}"]), PROFILE
    )
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    numbers = RealNumerics(settings, InProcessScorer(), Memory())
    prices = PriceTable.load(None)
    simulate(Simulation(config=settings, recipe="x", profile=PROFILE, numerics=numbers, prices=prices), folder)
    events = [record.event for record in read(folder.journal)]
    first, last = (event.scores["reward"][0] for event in events if isinstance(event, Evaluated))
    assert (abs(last - first) > 1e-3) == moves


def test_numbers_from_a_file_need_no_computation(first, tmp_path):
    numbers, folder = first
    numbers.memory.save(tmp_path / "numbers")
    again = numerics(Memory.load(tmp_path / "numbers", numbers.memory.subject))
    before = again.memory.misses
    assert rewards(run("reserved-only", again, tmp_path)) == rewards(folder)
    assert again.memory.misses == before


def test_numbers_of_other_settings_are_refused(tmp_path):
    Memory(subject="something else").save(tmp_path / "numbers")
    with pytest.raises(InputError, match=r"other settings.*choose another file"):
        Memory.load(tmp_path / "numbers", "this")


def test_numbers_depend_on_what_is_learned_and_not_on_batch_sizes():
    def subject(*changes: str) -> str:
        return subject_of(load_config("words-nft", (*SMALL, *changes)))

    assert subject("train.micro_batch=4", "train.batches_over=samples", "cluster.spot=3") == subject()
    assert subject("train.lr=1e-5") != subject()
    assert subject("algorithm.beta=0.5") != subject()
