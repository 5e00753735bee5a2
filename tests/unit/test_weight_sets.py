"""Copies of the trainable weights: swapped in and out without a trace, averaged as written by hand."""

import pytest
import torch
from torch import nn

from spotlight.compute.train.weight_sets import WeightSet, WeightSets


def tiny_module() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape) + number)
    return module


def moved(module: nn.Module, by: float) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by)


def snapshot(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def assert_same(one, other) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_sets_start_as_theta_and_do_not_follow_it_by_themselves():
    module = tiny_module()
    base = snapshot(module)
    sets = WeightSets(module, WeightSet)
    moved(module, 0.5)
    for which in WeightSet:
        assert_same(sets[which], base)


def test_using_computes_with_the_copy_and_gives_theta_back():
    module, x = tiny_module(), torch.ones(1, 3)
    base_output = module(x).detach()
    sets = WeightSets(module, {WeightSet.OLD})
    moved(module, 0.5)
    theta, theta_output = snapshot(module), module(x).detach()
    with sets.using(WeightSet.OLD):
        assert torch.equal(module(x), base_output)
    assert torch.equal(module(x), theta_output)
    assert not torch.equal(base_output, theta_output)
    assert_same(snapshot(module), theta)


def test_using_after_an_exception_gives_theta_back():
    module = tiny_module()
    sets = WeightSets(module, {WeightSet.EMA})
    moved(module, 0.5)
    theta, kept = snapshot(module), dict(sets[WeightSet.EMA])
    with pytest.raises(ZeroDivisionError), sets.using(WeightSet.EMA):
        raise ZeroDivisionError
    assert_same(snapshot(module), theta)
    assert_same(dict(sets[WeightSet.EMA]), kept)


def test_using_nested_gives_back_the_outer_set():
    module = tiny_module()
    sets = WeightSets(module, {WeightSet.OLD, WeightSet.EMA})
    moved(module, 0.5)
    sets.follow(WeightSet.EMA, 0.5)
    with sets.using(WeightSet.OLD):
        with sets.using(WeightSet.EMA):
            assert_same(snapshot(module), dict(sets[WeightSet.EMA]))
        assert_same(snapshot(module), dict(sets[WeightSet.OLD]))


def test_using_none_is_theta():
    module = tiny_module()
    sets = WeightSets(module, {WeightSet.OLD})
    moved(module, 0.5)
    with sets.using(None):
        moved(module, 0.25)
    assert_same({name: p.detach() for name, p in sets.theta.items()}, snapshot(module))


def test_using_a_set_that_is_not_kept_raises_and_leaves_theta():
    module = tiny_module()
    sets = WeightSets(module, {WeightSet.OLD})
    theta = snapshot(module)
    with pytest.raises(KeyError), sets.using(WeightSet.REFERENCE):
        pass
    assert_same(snapshot(module), theta)


def test_optimizer_after_using_steps_theta_and_not_the_copy():
    module, x = tiny_module(), torch.ones(1, 3)
    sets = WeightSets(module, {WeightSet.OLD})
    optimizer = torch.optim.SGD(sets.theta.values(), lr=0.1)
    before, old = snapshot(module), {name: t.clone() for name, t in sets[WeightSet.OLD].items()}
    with torch.no_grad(), sets.using(WeightSet.OLD):
        module(x)
    module(x).sum().backward()
    optimizer.step()
    assert_same(dict(sets[WeightSet.OLD]), old)
    assert all(not torch.equal(p, before[name]) for name, p in module.named_parameters())


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9])
def test_follow_is_the_weighted_mean_of_copy_and_theta(decay):
    module = tiny_module()
    sets = WeightSets(module, {WeightSet.EMA, WeightSet.OLD})
    base = snapshot(module)
    moved(module, 2.0)
    sets.follow(WeightSet.EMA, decay)
    for name, parameter in module.named_parameters():
        expected = decay * base[name] + (1 - decay) * parameter.detach()
        torch.testing.assert_close(sets[WeightSet.EMA][name], expected, rtol=1e-6, atol=1e-6)
        assert torch.equal(sets[WeightSet.OLD][name], base[name])
    if decay == 0:
        assert_same(dict(sets[WeightSet.EMA]), snapshot(module))


def test_follow_copies_values_and_keeps_no_alias_of_theta():
    module = tiny_module()
    sets = WeightSets(module, {WeightSet.OLD})
    moved(module, 1.0)
    sets.follow(WeightSet.OLD, 0.0)
    followed = snapshot(module)
    moved(module, 1.0)
    assert_same(dict(sets[WeightSet.OLD]), followed)


def test_frozen_parameters_are_in_no_set():
    module = tiny_module()
    module[0].requires_grad_(False)
    sets = WeightSets(module, {WeightSet.OLD})
    assert set(sets.theta) == set(sets[WeightSet.OLD]) == {"1.weight", "1.bias"}


def test_late_sets_are_made_once_and_start_as_theta_then():
    module = tiny_module()
    sets = WeightSets(module, {WeightSet.OLD}, is_late=True)
    moved(module, 0.5)
    sets.fill()
    filled = snapshot(module)
    moved(module, 0.5)
    sets.fill()
    assert_same(sets[WeightSet.OLD], filled)
    assert sets.names == (WeightSet.OLD,)
