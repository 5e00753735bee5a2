"""Requests: a name and weights that are worked out once."""

from ledger_stories import wanted

from spotlight.core.types import Version
from spotlight.core.work import Policy, Request, WeightsId, Work


def test_request_has_the_name_and_the_weights_of_what_it_is_for() -> None:
    request = wanted(2, 7, iteration=3, work=Work.EVALUATION, version=4)
    assert request.id == "evaluation/3/2/7"
    assert request.id is request.id
    assert request.weights == WeightsId(Version(4), Policy.AVERAGE)


def test_request_asked_for_its_name_as_a_class_tells_of_the_property() -> None:
    assert Request.id is vars(Request)["id"]
    assert Request.weights is vars(Request)["weights"]
