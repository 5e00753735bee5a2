"""Commits in parts: each holds only what is new, and all of them together are the whole flight."""

import pytest
from blob_stories import StoredFlights
from engine_stories import admit, bits, engine, made_alone, wanted
from tiny_models import PROMPTS, tiny_sampling

from spotlight.compute.rollout.sealed import SealError
from spotlight.core.types import SamplerKind, Window

FLOW = SamplerKind.FLOW_SDE


@pytest.mark.parametrize("commit_every", [1, 2, 3])
@pytest.mark.parametrize("kind", [SamplerKind.ODE, SamplerKind.ODE2, FLOW])
def test_sample_that_moves_after_every_commit_keeps_its_bits_though_no_commit_repeats_data(kind, commit_every):
    """The window lies at steps 2 to 4; each worker commits once and dies, and the next goes on from all the parts."""
    request = wanted(3, tiny_sampling(kind, Window(2, 3) if kind is FLOW else Window(0, 0), steps=8), PROMPTS[2])
    flights, flight, attempt, sizes = StoredFlights(), None, 0, []
    while True:
        attempt += 1
        by = engine()
        admit(by, wanted(8, tiny_sampling(steps=9)))
        admit(by, request, attempt=attempt, commit_every=commit_every, flight=flight)
        boundaries = [by.step() for _ in range(commit_every)]
        done = [finished for boundary in boundaries for finished in boundary.finished]
        if done:
            break
        commit = next(commit for commit in boundaries[-1].commits if commit.request == request.id)
        assert flights.fits(request.id, commit.since)
        flights.keep(request.id, commit.step, commit.flight, commit.since)
        flight = flights.at(request.id, commit.step)
        sizes.append(len(commit.flight))
    assert bits(done[0]) == bits(made_alone(request))
    recorded = sum(len(tensor) for tensor in bits(done[0]).values())
    headers = 1200 * len(sizes)
    # The latents, and for the second order the last velocity, are new at every commit.
    latents = done[0].payload.x0_SC.nbytes * (2 if kind is SamplerKind.ODE2 else 1)
    assert sum(sizes) < recorded + latents * len(sizes) + headers


def test_flight_that_lacks_a_part_is_refused():
    request = wanted(3, tiny_sampling(FLOW, Window(1, 3), steps=6))
    by = engine()
    admit(by, request, commit_every=1)
    parts = [by.step().commits[0] for _ in range(4)]
    assert [part.since for part in parts] == [0, 0, 2, 3]
    whole = b"".join(part.flight for part in parts[1:])
    admit(engine(), request, attempt=2, flight=whole)
    for wrong in (parts[3].flight, parts[1].flight + parts[3].flight, whole + parts[3].flight):
        with pytest.raises(SealError, match="a part is missing or doubled"):
            admit(engine(), request, attempt=2, flight=wrong)


def test_flight_with_a_part_of_another_attempt_is_refused():
    """Both attempts took the same steps, so the parts fit but for the last bits that they stand for."""
    request = wanted(3, tiny_sampling(FLOW, Window(1, 3), steps=6))
    parts = []
    for attempt in (1, 2):
        by = engine()
        admit(by, request, attempt=attempt, commit_every=1)
        parts.append([by.step().commits[0].flight for _ in range(4)])
    admit(engine(), request, attempt=3, flight=b"".join(parts[1][1:]))
    for mixed in ((parts[0][1], *parts[1][2:]), (*parts[0][1:3], parts[1][3])):
        with pytest.raises(SealError, match="of another attempt"):
            admit(engine(), request, attempt=3, flight=b"".join(mixed))
