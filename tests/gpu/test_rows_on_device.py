"""Devices and rows on a GPU: the probe finds the devices of torch, and a search stays within its memory limit."""

import pytest
import torch

from spotlight.compute.data.worlds import world
from spotlight.compute.meter import DeviceMeter
from spotlight.compute.models import families
from spotlight.compute.models.adapter import Adapter
from spotlight.compute.rollout.row_search import RolloutShape, search_rows
from spotlight.pools.devices import probe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda", 0)
MIB = 2**20


def test_probe_finds_the_devices_of_torch():
    found = probe("cuda")
    assert [device.name for device in found.devices] == [f"cuda:{n}" for n in range(torch.cuda.device_count())]
    assert found.devices[0].model == torch.cuda.get_device_name(0)
    assert found.devices[0].total == torch.cuda.mem_get_info(0)[1]
    assert 0 < found.devices[0].free <= found.devices[0].total


def forward(adapter: Adapter, rolled: RolloutShape, rows: int) -> None:
    x_BSC = torch.randn(rows, *adapter.latent_shape(rolled.size), device=CUDA)
    index = torch.zeros(rows, dtype=torch.long, device=CUDA)
    cond = adapter.collate(adapter.encode([rolled.prompt])).rows(index)
    with torch.no_grad():
        adapter.velocity(x_BSC, torch.full((rows,), 0.5, device=CUDA), cond, None, rolled.guidance, rolled.size)


@pytest.mark.parametrize("spare_mib", [None, 64, 4])
def test_search_stays_within_its_memory_limit_and_leaves_none_allocated(spare_mib):
    adapter, drawn = families.load("words-large", CUDA), world("words-large")
    rolled = RolloutShape(size=drawn.size, guidance=1.0, window=3, prompt=drawn.held_out(1)[0], most=171)
    # The workspace of the matrix kernels is allocated once and kept.
    forward(adapter, rolled, 1)
    before = torch.cuda.memory_allocated(CUDA)
    spare = None if spare_mib is None else spare_mib * MIB
    rows = search_rows(adapter, rolled, spare, DeviceMeter(CUDA))
    assert torch.cuda.memory_allocated(CUDA) == before
    assert 1 <= rows <= rolled.most
    if spare is not None:
        torch.cuda.reset_peak_memory_stats(CUDA)
        forward(adapter, rolled, rows)
        assert rows == 1 or torch.cuda.max_memory_allocated(CUDA) <= before + spare
