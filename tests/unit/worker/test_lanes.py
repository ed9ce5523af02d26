"""What lanes.py computes side by side, and that every batch comes back once, in order, with its error."""

import ast
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chunkvisor_worker.contract.exits import BATCHES_AT_ONCE
from chunkvisor_worker.cpu import STATELESS, Lanes, is_stateless, lanes_for
from chunkvisor_worker.encoder import Indices, Vectors
from late import Late, needs

torch: Any = Late("torch")
WAIT_S = 60.0


@pytest.mark.parametrize(
    ("threads", "batches", "products", "expected"),
    [
        pytest.param(2, 100, 1e10, Lanes(2, 1, 2), id="as many as threads"),
        pytest.param(2, 8, 1e10, Lanes(2, 1, 2), id="four batches a lane"),
        pytest.param(2, 7, 1e10, Lanes(), id="too few batches"),
        pytest.param(1, 100, 1e10, Lanes(), id="one thread"),
        pytest.param(64, 100, 1e10, Lanes(25, 2, 25), id="many cores, few batches"),
        pytest.param(16, 100, 6e11, Lanes(4, 4, 4), id="batches that take long"),
        pytest.param(2, 100, 14e11, Lanes(), id="batches that take too long"),
        pytest.param(0, 0, 1e10, Lanes(), id="nothing at all"),
    ],
)
def test_lanes_for(threads: int, batches: int, products: float, expected: Lanes) -> None:
    """Many short batches get a lane for each thread; few or long ones get fewer lanes with more threads each."""
    assert lanes_for(threads, batches, products) == expected


def test_the_environment_bounds_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wants one batch at a time can have it."""
    monkeypatch.setenv(BATCHES_AT_ONCE, "1")

    assert lanes_for(16, 1000, 1e10) == Lanes()


def batches_of(*sizes: int) -> list[Indices]:
    """Consecutive positions, so many in each batch."""
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def vectors_of(indices: Indices) -> Vectors:
    """One number for each text: its position."""
    return indices[:, None].astype(np.float32)


class Machine:
    """Starts batches and notes which thread computes what; a batch of `meeting` waits until two are at it."""

    def __init__(self, meeting: tuple[int, ...] = ()) -> None:
        self.threads: dict[int, str] = {}
        self.begun: list[int] = []
        self.running = self.most = 0
        self.beside: dict[int, int] = {}
        """How many others were being computed when a batch began."""
        self._lock = threading.Lock()
        self._both = threading.Barrier(2)
        self._meeting = meeting

    def begins(self, indices: Indices) -> bool:
        """All of them do."""
        self.begun.append(int(indices[0]))
        return True

    def start(self, indices: Indices) -> Callable[[], Vectors]:
        """Compute it."""
        first = int(indices[0])
        with self._lock:
            self.beside[first] = self.running
            self.running += 1
            self.most = max(self.most, self.running)
            self.threads[first] = threading.current_thread().name
        if first in self._meeting:
            self._both.wait(WAIT_S)
        with self._lock:
            self.running -= 1
        return lambda: vectors_of(indices)


def positions(found: Iterator[tuple[Indices, Vectors]]) -> list[int]:
    """Of all texts, in the order in which they came; each has its own vector."""
    came = []
    for indices, vectors in found:
        assert vectors[:, 0].tolist() == indices.tolist()
        came += indices.tolist()
    return came


@needs("torch")
def test_two_lanes_compute_at_the_same_time_and_in_order() -> None:
    """Two batches are under way at once, in threads of their own, and come back in the order in which they began."""
    machine = Machine(meeting=(0, 2))

    found = positions(Lanes(2, 1, 2).compute(batches_of(2, 2, 2, 2, 2), machine.begins, machine.start))

    assert found == list(range(10))
    assert machine.begun == [0, 2, 4, 6, 8]
    assert machine.most == 2
    assert all(name.startswith("lane") for name in machine.threads.values())


@needs("torch")
def test_a_text_alone_has_the_machine_to_itself() -> None:
    """A batch of one text begins when all before it have ended, and ends before the next begins."""
    machine = Machine(meeting=(0, 2))

    found = positions(Lanes(2, 1, 2).compute(batches_of(2, 2, 1, 2, 2), machine.begins, machine.start))

    assert found == list(range(9))
    assert machine.beside[4] == 0
    assert machine.threads[4] == threading.main_thread().name
    assert machine.beside[5] == 0


def test_one_lane_computes_in_this_thread_one_after_the_other() -> None:
    """Without lanes a batch is computed and handed on before the next begins."""
    machine = Machine()
    found = Lanes().compute(batches_of(2, 2), machine.begins, machine.start)

    next(found)

    assert machine.begun == [0]
    assert set(machine.threads.values()) == {threading.main_thread().name}


def test_ahead_starts_the_next_before_it_waits() -> None:
    """On a GPU a batch is launched while the one before it computes."""
    machine = Machine()
    found = Lanes(ahead=1).compute(batches_of(2, 2, 2), machine.begins, machine.start)

    next(found)

    assert machine.begun == [0, 2]


@needs("torch")
@pytest.mark.parametrize("lanes", [Lanes(), Lanes(ahead=1), Lanes(2, 1, 2)], ids=["one", "gpu", "two"])
def test_told_to_leave(lanes: Lanes) -> None:
    """Once no batch more may begin, those under way still come back."""
    machine = Machine()

    found = positions(lanes.compute(batches_of(2, 2, 2, 2), lambda indices: bool(indices[0] < 4), machine.start))

    assert found == [0, 1, 2, 3]


@needs("torch")
def test_an_error_in_a_lane_is_raised_as_it_is() -> None:
    """What a batch fails with is raised where its vectors are asked for; batches before it have theirs."""

    def start(indices: Indices) -> Callable[[], Vectors]:
        if indices[0] == 4:
            raise MemoryError("no memory for the batch")
        return lambda: vectors_of(indices)

    found = Lanes(2, 1, 2).compute(batches_of(2, 2, 2, 2), lambda _: True, start)

    assert [next(found)[0].tolist(), next(found)[0].tolist()] == [[0, 1], [2, 3]]
    with pytest.raises(MemoryError, match="no memory for the batch"):
        next(found)


@needs("torch")
def test_a_lane_has_its_own_threads() -> None:
    """Torch computes a lane's batches with the lane's threads, and whatever comes after with as many as before."""
    before = torch.get_num_threads()
    seen = []

    def start(indices: Indices) -> Callable[[], Vectors]:
        seen.append(torch.get_num_threads())
        return lambda: vectors_of(indices)

    positions(Lanes(2, 1, 2).compute(batches_of(2, 2, 2, 2), lambda _: True, start))

    assert set(seen) == {1}
    assert torch.get_num_threads() == before


def model(model_type: str, *rope_types: object) -> Any:
    """Stands in for a model of transformers with rotary embeddings of these kinds."""
    modules = [SimpleNamespace(rope_type=each) for each in rope_types]
    config = SimpleNamespace(model_type=model_type)
    return SimpleNamespace(transformers_model=SimpleNamespace(modules=lambda: modules, config=config))


@needs("transformers")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(model("bert"), True, id="no rotary embeddings"),
        pytest.param(model("qwen2", "default"), True, id="fixed frequencies"),
        pytest.param(model("qwen2", "default", "dynamic"), False, id="frequencies that grow"),
        pytest.param(model("modernbert", {"full_attention": "default", "sliding": "longrope"}), False, id="by layer"),
        pytest.param(model("big_bird"), False, id="a model that switches its attention"),
        pytest.param(model("my-own"), False, id="unknown"),
    ],
)
def test_is_stateless(given: Any, expected: bool) -> None:
    """Only model types that are known to keep nothing have several passes at once."""
    assert is_stateless(given) is expected


def test_an_older_transformers_computes_one_batch_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers changes the model while it computes, no model has several passes at once."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    assert not is_stateless(model("bert"))


@needs("transformers")
@pytest.mark.parametrize("model_type", sorted(STATELESS))
def test_stateless_models_assign_nothing_in_their_forward_pass(model_type: str) -> None:
    """In transformers as it is installed, no encoder of these types writes to itself after it is built."""
    assert assigned(model_type.replace("-", "_").removesuffix("_text")) <= {"layer_idx"}


def assigned(family: str) -> set[str]:
    """Attributes of self that the family's modules set outside of their constructors, heads and setters left out."""
    import transformers

    file = Path(transformers.__file__).parent / "models" / family / f"modeling_{family}.py"
    if not file.exists():
        pytest.skip(f"this transformers has no {family}")
    found = set()
    for kind in (each for each in ast.parse(file.read_text()).body if isinstance(each, ast.ClassDef)):
        for method in (each for each in kind.body if isinstance(each, ast.FunctionDef)):
            if "For" in kind.name or method.name.startswith(("__init__", "set_", "_init_", "_tie", "tie_", "post_")):
                continue
            for node in ast.walk(method):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    found.add(node.attr if isinstance(node.value, ast.Name) and node.value.id == "self" else "")
    return found - {""}
