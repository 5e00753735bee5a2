"""Weights copied to a CUDA device equal the sent ones bit for bit, from the store and from a neighbour."""

import multiprocessing

import pytest
import torch
from safetensors.torch import load_file

from spotlight.compute.weights import upload as uploading
from spotlight.compute.weights.digest import fingerprint
from spotlight.compute.weights.download import write
from spotlight.compute.weights.resident import Resident, own_copy
from spotlight.compute.weights.store import NodeStore
from spotlight.compute.weights.upload import bytes_of
from spotlight.core.types import Version
from spotlight.core.work import WeightsId
from spotlight.node.neighbours import Offer, offer, take

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda", 0)


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "odd": torch.randn(1003, 7),
        "half": torch.randn(64, 64).to(torch.bfloat16),
        "scalar": torch.tensor(2.5),
    }


@pytest.mark.parametrize("buffer", [997, 1 << 20])
def test_upload_copies_every_bit_for_any_size_of_its_buffers(monkeypatch, buffer):
    monkeypatch.setattr(uploading, "BUFFER_BYTES", buffer)
    sent = weights()
    arrived = uploading.upload(sent, CUDA)
    assert all(torch.equal(arrived[name].cpu(), tensor) for name, tensor in sent.items())


def test_module_moves_with_every_bit_in_any_layout_and_a_parameter_of_two_names_stays_one():
    torch.manual_seed(0)
    module = torch.nn.ModuleDict({name: torch.nn.Linear(31, 17) for name in ("a", "b", "c")})
    module["b"].weight = module["a"].weight
    module["c"].weight = torch.nn.Parameter(torch.randn(31, 17).T)
    module.register_buffer("table", torch.randn(5))
    sent = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert uploading.moved(module, CUDA) is module
    assert all(
        tensor.device == CUDA and torch.equal(tensor.cpu(), sent[name]) for name, tensor in module.state_dict().items()
    )
    assert module["b"].weight is module["a"].weight
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_module_that_is_on_the_device_keeps_its_memory():
    module = torch.nn.Linear(31, 17, device=CUDA)
    before = [parameter.data_ptr() for parameter in module.parameters()]
    uploading.moved(module, CUDA)
    assert [parameter.data_ptr() for parameter in module.parameters()] == before


@pytest.mark.parametrize("buffer", [997, 1 << 14, 1 << 20])
def test_file_of_a_devices_weights_has_every_bit_for_any_size_of_its_buffers(tmp_path, monkeypatch, buffer):
    monkeypatch.setattr(uploading, "BUFFER_BYTES", buffer)
    sent = weights()
    write(tmp_path / "w", {name: tensor.to(CUDA) for name, tensor in sent.items()}, {})
    read = load_file(tmp_path / "w")
    assert all(torch.equal(read[name], tensor) for name, tensor in sent.items())


def test_fingerprint_of_a_devices_weights_is_that_of_the_hosts():
    sent = weights() | {"larger than a chunk of the host": torch.randn(200_000)}
    assert fingerprint({name: tensor.to(CUDA) for name, tensor in sent.items()}) == fingerprint(sent)


def _newcomer(pipe) -> None:
    taken = take(Offer.from_bytes(pipe.recv()), CUDA)
    # Bytes: a sent tensor is a handle into the memory of its process, which may have ended.
    pipe.send({name: bytes_of(tensor.cpu()).numpy().tobytes() for name, tensor in taken.items()})


def test_newcomer_copies_a_neighbours_weights_from_device_to_device():
    held = {name: tensor.to(CUDA) for name, tensor in weights().items()}
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_newcomer, args=(there,))
    process.start()
    there.close()
    here.send(offer(WeightsId(Version(3)), "digest", held).to_bytes())
    taken = here.recv()
    process.join()
    assert taken == {name: bytes_of(tensor.cpu()).numpy().tobytes() for name, tensor in held.items()}


def test_own_copy_of_trained_weights_equals_the_copy_from_the_store(tmp_path):
    torch.manual_seed(0)
    module = torch.nn.Linear(96, 64, device=CUDA)
    weights_id, x = WeightsId(Version(1)), torch.randn(7, 96, device=CUDA)
    trained = {name: (parameter.data * 1.5).t().contiguous().t() for name, parameter in module.named_parameters()}
    store = NodeStore(tmp_path)
    store.publish(weights_id, "tiny", trained, "base")
    own, fetched = Resident(module, "base"), Resident(module, "base")
    assert own.adopt(weights_id, own_copy(trained)) == fetched.load(store.open(weights_id))
    drawn = []
    for resident in (own, fetched):
        with resident.use(weights_id):
            drawn.append(module(x))
    assert torch.equal(*drawn)
