"""Requests: an id and weights that are computed once."""

from ledger_stories import wanted

from spotlight.core.types import Version
from spotlight.core.work import Policy, Request, WeightsId, Work


def test_request_has_the_id_and_the_weights_of_its_work() -> None:
    request = wanted(2, 7, iteration=3, work=Work.EVALUATION, version=4)
    assert request.id == "evaluation/3/2/7"
    assert request.id is request.id
    assert request.weights == WeightsId(Version(4), Policy.AVERAGE)


def test_id_read_from_the_request_class_is_the_property() -> None:
    assert Request.id is vars(Request)["id"]
    assert Request.weights is vars(Request)["weights"]
