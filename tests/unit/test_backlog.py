"""Which chunk comes next."""

import pytest

from chunkvisor.supervise.backlog import Backlog
from chunkvisor.supervise.task import NOW, Control, Seat, Task
from chunkvisor_worker.contract.messages import Limits
from simulator.disk import Output

HERE, BESIDE, ELSEWHERE = Seat(0, "a"), Seat(1, "a"), Seat(2, "b")


def whole(due_s: float, output: int, chunk: int) -> Task:
    """All texts of a chunk of ten."""
    return Task(due_s, output, chunk, 10 * chunk, 10 * chunk + 10)


def output_of(chunks: int, committed: set[int]) -> Output:
    """An output of chunks of ten texts."""
    made = Output("out", Limits(1), [(10 * number, 10 * number + 10) for number in range(chunks)] or [(0, 0)])
    for number in committed if chunks else {0}:
        made.keep(number, *made.bounds(number), ())
    return made


def backlog_of(*outputs: tuple[int, set[int]]) -> Backlog:
    """A backlog over outputs of (chunks, committed ones)."""
    return Backlog([output_of(*each) for each in outputs])


def drain(backlog: Backlog, now_s: float = 0) -> list[tuple[int, int]]:
    """All that can be taken now, as (output, chunk)."""
    taken = []
    while task := backlog.take(now_s):
        taken.append((task.output, task.chunk))
    return taken


@pytest.mark.parametrize(
    ("outputs", "order"),
    [
        ([(3, set())], [(0, 0), (0, 1), (0, 2)]),
        ([(4, {0, 2})], [(0, 1), (0, 3)]),
        ([(2, set()), (2, {0})], [(0, 0), (0, 1), (1, 1)]),
        ([(2, {0, 1}), (1, set())], [(1, 0)]),
        ([(0, set()), (1, set())], [(1, 0)]),
        ([(2, {0, 1})], []),
        ([], []),
    ],
    ids=["all", "resumed", "two outputs", "first complete", "no rows", "complete", "no output"],
)
def test_pending_chunks_come_in_order(outputs: list[tuple[int, set[int]]], order: list[tuple[int, int]]) -> None:
    """Output by output, chunk by chunk, each pending one once."""
    backlog = backlog_of(*outputs)
    assert backlog.empty == (not order)
    assert backlog.due(0) == bool(order)
    assert drain(backlog) == order
    assert drain(backlog) == []
    assert backlog.empty
    assert not backlog.due(0)


def test_chunk_put_back_comes_first_when_it_is_due() -> None:
    """Until then others are worked on; then it goes before them, and once only."""
    backlog = backlog_of((4, set()))
    assert backlog.take(0) == whole(0, 0, 0)
    backlog.put_back(whole(10, 0, 0))
    assert backlog.take(9.9) == whole(9.9, 0, 1)
    assert backlog.take(10) == whole(10, 0, 0)
    assert drain(backlog, 10) == [(0, 2), (0, 3)]


def test_chunks_put_back_come_by_time_then_place() -> None:
    """What is due at any time goes first, then by time; of those due at once, the earlier chunk."""
    backlog = backlog_of((0, set()))
    for task in (whole(5, 1, 0), whole(5, 0, 7), whole(1, 2, 2), whole(5, 0, 3), whole(NOW, 0, 9)):
        backlog.put_back(task)
    assert drain(backlog, 5) == [(0, 9), (2, 2), (0, 3), (0, 7), (1, 0)]


def test_nothing_is_taken_before_it_is_due() -> None:
    """A backlog that has only chunks for later gives none, and is not empty."""
    backlog = backlog_of((0, set()))
    backlog.put_back(Task(5, 0, 3, 30, 40, blocking_launches=True))
    assert backlog.take(4) is None
    assert not backlog.due(4)
    assert not backlog.empty
    assert backlog.due(5)
    task = backlog.take(5)
    assert task is not None
    assert task.blocking_launches


def test_chunk_taken_apart_gives_what_is_missing() -> None:
    """Of a chunk that an earlier run took apart only what is missing is handed out, a task for each side of a cut."""
    output = output_of(3, set())
    output.keep(0, 0, 10, [0, 1, 2, 4, 7])
    output.cut(0, 4)
    output.keep(1, 10, 20, [15])
    output.quarantine(1, 15)
    backlog = Backlog([output])
    assert not backlog.handed_out(0, 0)
    assert backlog.take(0) == Task(NOW, 0, 0, 0, 3, fresh=True, part=True)
    assert backlog.handed_out(0, 0)
    assert not backlog.handed_out(0, 1)
    assert backlog.take(0) == Task(NOW, 0, 0, 4, 8, fresh=True, skip=(5, 6), part=True)
    assert backlog.take(0) == Task(NOW, 0, 1, 10, 10, fresh=True)  # it is only to be put together
    assert backlog.take(0) == whole(0, 0, 2)
    assert backlog.empty


@pytest.mark.parametrize(("by_node", "seat"), [(True, ELSEWHERE), (False, BESIDE)], ids=["machine", "device"])
def test_what_failed_somewhere_is_for_another(by_node: bool, seat: Seat) -> None:
    """A task is not handed to the place at which it failed last, the next one is; one that is alone takes it."""
    backlog = backlog_of((2, {0}))
    failed = Task(0, 0, 0, 0, 10, avoid=HERE)
    backlog.put_back(failed)
    assert backlog.take(1, HERE, by_node=by_node) == whole(1, 0, 1)
    assert backlog.take(1, HERE, by_node=by_node) is None
    assert backlog.take(1, seat, by_node=by_node) == failed
    backlog.put_back(failed)
    assert backlog.take(1, HERE, alone=True) == failed
    assert backlog.empty


def test_a_control_is_for_its_device() -> None:
    """Whoever is alone: only that device can tell about itself; one that is not handed out yet can be taken back."""
    backlog = backlog_of((1, {0}))
    control = Task(NOW, 0, 0, 3, 4, control=Control.KNOWN_GOOD, only=1)
    backlog.put_back(control)
    assert backlog.take(1, HERE, alone=True) is None
    assert backlog.take(1, BESIDE) == control
    assert not backlog.withdraw(control)
    backlog.put_back(control)
    assert backlog.withdraw(control)
    assert backlog.empty


def test_far_from_what_failed() -> None:
    """While texts are undecided, a new chunk goes before what was put back, and of that the last before the first."""
    backlog = backlog_of((2, {0}))
    for start in (3, 5, 7):
        backlog.put_back(Task(NOW, 0, 0, start, start + 1))
    assert backlog.take(1, far=True) == whole(1, 0, 1)
    assert backlog.take(1, far=True) == Task(NOW, 0, 0, 7, 8)
    assert backlog.take(1) == Task(NOW, 0, 0, 3, 4)
