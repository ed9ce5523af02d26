"""What makes a CPU fast and changes no vector: linear layers packed for oneDNN, and batches
computed side by side.
"""

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from chunkvisor_worker import cpu
from chunkvisor_worker.batching import Indices, Vectors
from chunkvisor_worker.contract.exits import LINEAR_FILE
from chunkvisor_worker.cpu import (
    BATCHES_AT_ONCE,
    LINEAR,
    Lanes,
    choose_kernel,
    is_stateless,
    lanes_for,
)
from late import Late, needs

torch: Any = Late("torch")
WAIT_S = 60.0


def two_layers() -> Any:
    """Make a model of two layers of odd sizes, one of them without a bias."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(33, 70), torch.nn.GELU(), torch.nn.Linear(70, 17, bias=False)
    ).eval()


def forward_of(model: Any, *shape: int) -> Callable[[], Any]:
    """Make a function that gives what the model makes of the same input, each time."""
    given = torch.rand(*(shape or (3, 33)), generator=torch.Generator().manual_seed(1))

    def forward() -> Any:
        with torch.inference_mode():
            return model(given)

    return forward


@needs("torch")
@pytest.mark.parametrize("shape", [(33,), (5, 33), (1, 4100, 33), (0, 33), (2, 3, 4, 33)])
def test_packed_weights_compute_the_same(shape: tuple[int, ...]) -> None:
    """One token, none, many, in any number of dimensions, with a bias and without: equal to 1e-6."""
    model = two_layers()
    expected = forward_of(model, *shape)()
    layers = cpu.packable(model)
    cpu.pack(layers)
    assert len(layers) == 2
    found = forward_of(model, *shape)()
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@needs("torch")
def test_weights_are_there_once_and_come_back_to_the_last_bit() -> None:
    """A packed weight replaces the dense one, until it is unpacked."""
    model = two_layers()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    cpu.pack(cpu.packable(model))
    assert [layer.weight.is_mkldnn for layer in (model[0], model[2])] == [True, True]
    assert not cpu.packable(model), "they are not packed twice"
    cpu.unpack([model[0], model[2]])
    assert type(model[0]) is torch.nn.Linear
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@needs("torch")
def test_only_plain_layers_are_packed() -> None:
    """Shared, wrapped and derived weights, and those in another precision or place, are left as
    they are.
    """
    shared = torch.nn.ModuleList(
        [torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(4, 8)]
    )
    shared[1].weight = shared[0].weight
    wrapped, normed = two_layers(), two_layers()
    wrapped[0].forward = lambda given: given  # as accelerate does
    torch.nn.utils.spectral_norm(normed[0])  # its weight is made anew for each pass
    assert [len(cpu.packable(each)) for each in (shared, wrapped, normed)] == [1, 1, 1]
    derived = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
    for model in (two_layers().bfloat16(), torch.nn.MultiheadAttention(8, 2), derived):
        assert not cpu.packable(model)
    assert not cpu.packable(torch.nn.Linear(4, 4, device="meta"))


@needs("torch")
@pytest.mark.parametrize(
    ("wanted", "ratio", "name"),
    [("", 0.4, "onednn"), ("", 0.99, "torch"), ("onednn", 0.99, "onednn"), ("torch", 0.4, "torch")],
)
def test_the_faster_kernel_is_chosen(
    monkeypatch: pytest.MonkeyPatch, wanted: str, ratio: float, name: str
) -> None:
    """The measurement decides, or the variable; what is not chosen leaves no trace."""
    monkeypatch.setenv(LINEAR, wanted)
    monkeypatch.setattr(cpu, "measured_ratio", lambda layers: ratio)
    model = two_layers()
    assert choose_kernel(model, forward_of(model)) == name
    assert model[0].weight.is_mkldnn is (name == "onednn")


@needs("torch")
def test_later_workers_choose_as_the_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel that the first worker of a workdir finds faster is that of all others: vectors
    would differ.
    """
    monkeypatch.delenv(LINEAR, raising=False)
    monkeypatch.setenv(LINEAR_FILE, str(tmp_path / "linear"))
    for ratio in (0.5, 2.0):
        monkeypatch.setattr(cpu, "measured_ratio", Mock(return_value=ratio))
        model = two_layers()
        assert choose_kernel(model, forward_of(model)) == "onednn"


@needs("torch")
@pytest.mark.parametrize("found", [1.001, math.nan, None])
def test_a_model_that_packed_weights_do_not_suit_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch, found: float | None
) -> None:
    """If its vectors change, or it fails, the model is left as it was, to the last bit."""
    monkeypatch.setenv(LINEAR, "onednn")
    layer = torch.nn.Linear(33, 4)
    before = layer.weight.detach().clone()
    answers = iter([torch.ones(1, 4), *([torch.full((1, 4), found)] if found else [])])
    assert choose_kernel(layer, lambda: next(answers)) == "torch"
    assert type(layer) is torch.nn.Linear
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize(
    ("threads", "batches", "products", "expected"),
    [
        pytest.param(2, 8, 1e10, Lanes(2, 1, 2), id="four batches a lane"),
        pytest.param(2, 7, 1e10, Lanes(), id="too few batches"),
        pytest.param(64, 100, 1e10, Lanes(25, 2, 25), id="many cores, few batches"),
        pytest.param(16, 100, 6e11, Lanes(4, 4, 4), id="batches that take long"),
        pytest.param(2, 100, 14e11, Lanes(), id="batches that take too long"),
        pytest.param(0, 0, 1e10, Lanes(), id="nothing at all"),
    ],
)
def test_lanes_for(
    threads: int, batches: int, products: float, expected: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many short batches get a lane for each thread, few or long ones fewer lanes; one, if the
    variable says so.
    """
    assert lanes_for(threads, batches, products) == expected
    monkeypatch.setenv(BATCHES_AT_ONCE, "1")
    assert lanes_for(threads, batches, products) == Lanes()


def batches_of(*sizes: int) -> list[Indices]:
    """Make batches of consecutive positions."""
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


class Machine:
    """Starts batches and notes which thread computes what; a batch of `meeting` waits until two are
    at it.
    """

    def __init__(self, meeting: tuple[int, ...] = ()) -> None:
        self.threads: dict[int, str] = {}
        self.begun: list[int] = []
        self._both = threading.Barrier(2)
        self._meeting = meeting

    def begins(self, indices: Indices) -> bool:
        """Note the batch; no more than five may begin."""
        self.begun.append(int(indices[0]))
        return len(self.begun) <= 5

    def start(self, indices: Indices) -> Callable[[], Vectors]:
        """Compute one number for each text: its position."""
        self.threads[int(indices[0])] = threading.current_thread().name
        if indices[0] in self._meeting:
            self._both.wait(WAIT_S)
        return lambda: indices[:, None].astype(np.float32)


def positions(found: Iterator[tuple[Indices, Vectors]]) -> list[int]:
    """List all texts in the order in which they came; each has its own vector."""
    came = []
    for indices, vectors in found:
        assert vectors[:, 0].tolist() == indices.tolist()
        came += indices.tolist()
    return came


@needs("torch")
def test_two_lanes_compute_at_the_same_time_and_in_order() -> None:
    """Two batches are under way at once and come back in order; a text alone has the machine to
    itself.
    """
    threads = torch.get_num_threads()
    machine = Machine(meeting=(0, 2))
    found = positions(
        Lanes(2, 1, 2).compute(batches_of(2, 2, 1, 2, 2, 2), machine.begins, machine.start)
    )
    assert found == list(range(9)), "those under way come back when no more may begin"
    assert machine.begun == [0, 2, 4, 5, 7, 9]
    assert machine.threads.pop(4) == threading.main_thread().name
    assert all(name.startswith("lane") for name in machine.threads.values())
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("lanes", "begun"), [(Lanes(), [0]), (Lanes(ahead=1), [0, 2])], ids=["one", "ahead"]
)
def test_one_lane_computes_in_this_thread(lanes: Lanes, begun: list[int]) -> None:
    """Without lanes a batch is handed on before the next begins; on a GPU the next is launched
    before that.
    """
    machine = Machine()
    next(lanes.compute(batches_of(2, 2, 2), machine.begins, machine.start))
    assert machine.begun == begun
    assert set(machine.threads.values()) == {threading.main_thread().name}


def model(model_type: str, *rope_types: object) -> Any:
    """Make a stand-in for a model of transformers with rotary embeddings of these kinds."""
    modules = [SimpleNamespace(rope_type=each) for each in rope_types]
    config = SimpleNamespace(model_type=model_type)
    return SimpleNamespace(
        transformers_model=SimpleNamespace(modules=lambda: modules, config=config)
    )


@needs("transformers")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(model("bert"), True, id="no rotary embeddings"),
        pytest.param(model("qwen2", "default"), True, id="fixed frequencies"),
        pytest.param(model("qwen2", "default", "dynamic"), False, id="frequencies that grow"),
        pytest.param(
            model("modernbert", {"full_attention": "default", "sliding": "longrope"}),
            False,
            id="by layer",
        ),
        pytest.param(model("my-own"), False, id="unknown"),
    ],
)
def test_is_stateless(given: Any, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only model types that are known to keep nothing have several passes at once; with an older
    transformers none.
    """
    assert is_stateless(given) is expected
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert not is_stateless(given)
