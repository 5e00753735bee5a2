"""The catalogue's facts of a family equal those of the loaded model."""

import pytest

from spotlight.compute.models import families
from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.pixels import HEADS


@pytest.mark.parametrize("family", families.SPECS)
def test_facts_of_a_family_are_those_of_its_model(family):
    facts, spec = facts_of(family), families.SPECS[family]
    assert facts.heads == HEADS
    assert facts.token_pixels == spec.patch**2
    assert facts.tokens == (spec.size.height // spec.patch) * (spec.size.width // spec.patch)
