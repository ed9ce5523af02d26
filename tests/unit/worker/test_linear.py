"""What linear.py packs, what it leaves alone, and that neither changes a vector."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from chunkvisor_worker import cpu
from chunkvisor_worker.contract.exits import LINEAR
from chunkvisor_worker.cpu import Timing, choose, pack, packable, time_ratio, unpack
from late import Late, needs

torch: Any = Late("torch")
pytestmark = needs("torch")

SLOW, FAST = [Timing(1, 1, 1.0, 0.99)], [Timing(1, 1, 1.0, 0.4)]


def two_layers() -> Any:
    """A model of two layers of odd sizes, one of them without a bias."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(33, 70), torch.nn.GELU(), torch.nn.Linear(70, 17, bias=False)).eval()


def forward_of(model: Any, *shape: int) -> Callable[[], Any]:
    """Computes what the model makes of the same input, each time."""
    given = torch.rand(*(shape or (3, 33)), generator=torch.Generator().manual_seed(1))

    def forward() -> Any:
        with torch.inference_mode():
            return model(given)

    return forward


@pytest.mark.parametrize(
    "shape", [(1, 33), (33,), (5, 33), (1, 1, 33), (2, 7, 33), (1, 4100, 33), (0, 33), (2, 0, 33), (2, 3, 4, 33)]
)
def test_packed_weights_compute_the_same(shape: tuple[int, ...]) -> None:
    """One token, none, many, in any number of dimensions, with a bias and without: equal to 1e-6."""
    model = two_layers()
    expected = forward_of(model, *shape)()

    layers = packable(model)
    pack(layers)

    assert len(layers) == 2
    found = forward_of(model, *shape)()
    assert found.shape == expected.shape
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_view_with_strides_is_taken() -> None:
    """An input that is not contiguous, as attention leaves it, gives what its copy gives."""
    model = two_layers()
    given = torch.rand(4, 33, 6).transpose(1, 2)
    expected = model(given).detach()

    pack(packable(model))

    with torch.inference_mode():
        torch.testing.assert_close(model(given), expected, rtol=0, atol=1e-6)


def test_weights_are_there_once_and_come_back_to_the_last_bit() -> None:
    """A packed weight replaces the dense one, and looks like it to who asks for its shape, dtype, device or size."""
    model = two_layers()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    shapes = {name: (value.shape, value.dtype, value.device) for name, value in model.named_parameters()}

    pack(packable(model))

    assert {name: (value.shape, value.dtype, value.device) for name, value in model.named_parameters()} == shapes
    assert [layer.weight.is_mkldnn for layer in (model[0], model[2])] == [True, True]
    assert isinstance(model[0], torch.nn.Linear)
    assert model.to("cpu").float() is model
    assert not packable(model), "they are not packed twice"

    unpack([model[0], model[2]])

    assert type(model[0]) is torch.nn.Linear
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def shared() -> Any:
    """A layer that has its weight in common with an embedding, and one that has its own."""
    model = torch.nn.ModuleList([torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(4, 8)])
    model[1].weight = model[0].weight
    return model


def wrapped() -> Any:
    """A layer whose forward somebody has replaced (accelerate), beside another."""
    model = two_layers()
    model[0].forward = lambda given: given
    return model


def normed() -> Any:
    """A layer whose weight is made anew for each pass, beside another."""
    model = two_layers()
    torch.nn.utils.spectral_norm(model[0])
    return model


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (two_layers, 2),
        (shared, 1),
        (wrapped, 1),
        (normed, 1),
        (lambda: two_layers().bfloat16(), 0),
        (lambda: two_layers().double(), 0),
        (lambda: torch.nn.MultiheadAttention(8, 2), 0),
        (lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4)), 0),
        (lambda: torch.nn.Linear(4, 4, device="meta"), 0),
        (lambda: torch.nn.Embedding(4, 4), 0),
    ],
)
def test_only_plain_layers_are_packed(make: Callable[[], Any], count: int) -> None:
    """Shared, wrapped and derived weights, and those in another precision or place, are left as they are."""
    assert len(packable(make())) == count


def test_a_layer_that_stands_in_the_model_twice_is_packed_once() -> None:
    """One module under two names (ALBERT) has one weight."""
    layer = torch.nn.Linear(4, 4)

    assert packable(torch.nn.Sequential(layer, layer)) == [layer]


@pytest.mark.parametrize(
    ("timings", "ratio"),
    [
        ([], math.inf),
        ([Timing(1, 10, 1.0, 0.5)], 0.5),
        ([Timing(6, 10, 1.0, 0.5), Timing(2, 10, 1.0, 2.5)], 1.0),
        ([Timing(1, 100, 1.0, 0.5), Timing(1, 1, 1.0, 2.0)], 2.005 / 1.01),
        ([Timing(1, 1, 0.0, 0.0)], math.inf),
    ],
)
def test_the_ratio_is_that_of_all_layers_for_one_token(timings: list[Timing], ratio: float) -> None:
    """Each shape counts by its layers, and by the time of one row of its product."""
    assert time_ratio(timings) == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("wanted", "timings", "name", "ratio"),
    [
        ("", FAST, "onednn", 0.4),
        ("", SLOW, "torch", 0.99),
        ("onednn", SLOW, "onednn", 0.0),
        ("torch", FAST, "torch", 0.0),
        ("mkl", FAST, "onednn", 0.4),
    ],
)
def test_the_faster_kernel_is_chosen(
    monkeypatch: pytest.MonkeyPatch, wanted: str, timings: list[Timing], name: str, ratio: float
) -> None:
    """By what was measured, or by the variable; what is not chosen leaves no trace."""
    monkeypatch.setenv(LINEAR, wanted)
    monkeypatch.setattr(cpu, "_measure", lambda layers: timings)
    model = two_layers()

    chosen = choose(model, forward_of(model))

    assert (chosen.name, chosen.time_ratio) == (name, ratio)
    assert model[0].weight.is_mkldnn is (name == "onednn")


def reader() -> Any:
    """A model that multiplies by the weight of its layer without calling it."""

    class Reader(torch.nn.Module):  # type: ignore[misc]  # torch is not followed, see pyproject.toml
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(33, 4)

        def forward(self, given: Any) -> Any:
            return given @ self.layer.weight.view(4, 33).t()

    return Reader()


@pytest.mark.parametrize("found", ["error", "other numbers", "nan"])
def test_a_model_that_packed_weights_do_not_suit_keeps_its_own(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    """Where its code reads weights, or its vectors change, the model is left as it was, to the last bit."""
    monkeypatch.setenv(LINEAR, "onednn")
    model = reader()
    before = model.layer.weight.detach().clone()
    answers = iter([torch.ones(1, 4), torch.full((1, 4), 1.001 if found == "other numbers" else math.nan)])

    chosen = choose(model, forward_of(model) if found == "error" else lambda: next(answers))

    assert chosen.name == "torch"
    assert type(model.layer) is torch.nn.Linear
    assert torch.equal(model.layer.weight, before)


def test_the_measurement_times_each_shape_and_leaves_the_threads() -> None:
    """Of two layers of one shape and one of another there are two timings, and torch has as many threads as before."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 8))
    threads = torch.get_num_threads()

    timings = cpu._measure(packable(model))

    assert sorted(each.layers for each in timings) == [1, 2]
    assert 0 < time_ratio(timings) < math.inf
    assert torch.get_num_threads() == threads
    assert not any(layer.weight.is_mkldnn for layer in model)


@pytest.mark.parametrize(("packed_s", "rounds"), [(1.2, 2), (0.95, 4), (0.85, 4), (0.5, 2)])
def test_what_is_clear_at_once_is_timed_once(monkeypatch: pytest.MonkeyPatch, packed_s: float, rounds: int) -> None:
    """After the round that makes the kernels one more is enough, unless both take about as long."""
    ran = list[bool]()

    class Trial:
        layers, rows = 1, 1

        def __init__(self, *_: object) -> None:
            self.least_s = [1.0, packed_s]

        def run(self, *, counts: bool) -> None:
            ran.append(counts)

    monkeypatch.setattr(cpu, "_Trial", Trial)

    assert cpu._timed(torch, [(1, None)]) == [Timing(1, 1, 1.0, packed_s)]
    assert ran == [False, *[True] * (rounds - 1)]
