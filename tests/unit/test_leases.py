"""The agent's record of its workers' leases."""

from spotlight.core import messages as m
from spotlight.core.types import Prompt, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import Request, Work
from spotlight.node.leases import Leases

WORKER = WorkerId("spot-1.1/0.1")
PROMPT = Prompt(text="hello")


def lease(seed: int, attempt: int = 1, work: Work = Work.ROLLOUT) -> m.Granted:
    sample = Sample(prompt=PROMPT.id, seed=seed, sampling=Sampling(steps=10, size=Size(4, 6)), version=Version(0))
    return m.Granted(request=Request(work=work, iteration=0, group=0, sample=sample), attempt=attempt, prompt=PROMPT)


def test_lease_is_kept_until_its_own_attempt_ends():
    leases, first, second = Leases(), lease(1, attempt=1), lease(1, attempt=2)
    leases.observe(WORKER, m.Grant(leases=(first,)))
    leases.observe(WORKER, m.Grant(leases=(second,)))
    assert leases.ended(WORKER, first.request.id, attempt=1) == second
    assert leases.of(WORKER) == {second.request.id: second}
    leases.ended(WORKER, second.request.id, attempt=2)
    assert leases.of(WORKER) == {}


def test_relayed_fence_and_discard_end_the_leases_that_they_name():
    leases, kept = Leases(), lease(1)
    fenced, preview = lease(2), lease(3, work=Work.PREVIEW)
    leases.observe(WORKER, m.Grant(leases=(kept, fenced, preview)))
    leases.observe(WORKER, m.Fenced(request=fenced.request.id, attempt=1))
    leases.observe(WORKER, m.Discard(work=Work.PREVIEW))
    assert leases.of(WORKER) == {kept.request.id: kept}


def test_worker_that_is_gone_holds_nothing_and_unknown_workers_never_did():
    leases = Leases()
    leases.observe(WORKER, m.Grant(leases=(lease(1),)))
    leases.gone(WORKER)
    assert leases.of(WORKER) == {}
    assert leases.ended(WORKER, lease(1).request.id, attempt=1) is None
