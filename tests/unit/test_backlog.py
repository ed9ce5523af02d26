"""Which chunk comes next."""

from typing import cast

import pytest

from chunkvisor.store.ledger import Ledger
from chunkvisor.store.plan import Plan
from chunkvisor.supervise.backlog import Backlog, Task


class FakeLedger:
    """What a backlog asks of a ledger."""

    def __init__(self, count: int, committed: set[int], apart: dict[int, list[tuple[int, int]]] | None = None) -> None:
        self.plan = Plan(10 * count, 10)
        self.committed = committed
        self.apart = apart or {}

    def next_pending(self, start: int) -> int | None:
        """As Ledger.next_pending."""
        return next((number for number in range(start, self.plan.count) if number not in self.committed), None)

    def parts(self, chunk: int) -> "FakeLedger":
        """As Ledger.parts, for what is missing."""
        self.asked = chunk
        return self

    def missing(self) -> list[tuple[int, int]]:
        """As Parts.missing."""
        return self.apart.get(self.asked, [self.plan.bounds(self.asked)])


def whole(due_s: float, output: int, chunk: int) -> Task:
    """All texts of a chunk of ten."""
    return Task(due_s, output, chunk, 10 * chunk, 10 * chunk + 10)


def backlog_of(*outputs: tuple[int, set[int]]) -> Backlog:
    """A backlog over outputs of (chunks, committed ones)."""
    return Backlog([cast("Ledger", FakeLedger(*output)) for output in outputs])


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
    assert drain(backlog) == order
    assert drain(backlog) == []
    assert backlog.empty


def test_chunk_put_back_comes_first_when_it_is_due() -> None:
    """Until then others are worked on; then it goes before them, and once only."""
    backlog = backlog_of((4, set()))
    assert backlog.take(0) == whole(0, 0, 0)
    backlog.put_back(whole(10, 0, 0))
    assert backlog.next_due_s() == 10
    assert backlog.take(9.9) == whole(9.9, 0, 1)
    assert backlog.take(10) == whole(10, 0, 0)
    assert backlog.next_due_s() is None
    assert drain(backlog, 10) == [(0, 2), (0, 3)]


def test_chunks_put_back_come_by_time_then_place() -> None:
    """The one that is due first goes first; of those due at once, the earlier chunk."""
    backlog = backlog_of((0, set()))
    for task in (whole(5, 1, 0), whole(5, 0, 7), whole(1, 2, 2), whole(5, 0, 3)):
        backlog.put_back(task)
    assert drain(backlog, 5) == [(2, 2), (0, 3), (0, 7), (1, 0)]


def test_nothing_is_taken_before_it_is_due() -> None:
    """A backlog that has only chunks for later gives none, and says when to ask again."""
    backlog = backlog_of((0, set()))
    backlog.put_back(Task(5, 0, 3, 30, 40, blocking_launches=True))
    assert backlog.take(4) is None
    assert not backlog.empty
    assert backlog.next_due_s() == 5
    task = backlog.take(5)
    assert task is not None
    assert task.blocking_launches


def test_chunk_taken_apart_gives_what_is_missing() -> None:
    """Of a chunk that an earlier run took apart only the missing ranges are handed out; of one with none, nothing."""
    ledger = FakeLedger(3, set(), {0: [(0, 3), (4, 5)], 1: []})
    backlog = Backlog([cast("Ledger", ledger)])
    assert not backlog.handed_out(0, 0)
    assert backlog.take(0) == Task(0, 0, 0, 0, 3)
    assert backlog.handed_out(0, 0)
    assert not backlog.handed_out(0, 1)
    assert backlog.take(0) == Task(0, 0, 0, 4, 5)
    assert backlog.take(0) == whole(0, 0, 2)
    assert backlog.empty


def test_what_failed_on_a_machine_is_for_another() -> None:
    """A task is not handed to the machine on which it failed last, but the next one is."""
    backlog = backlog_of((2, {0}))
    failed = Task(0, 0, 0, 0, 10, avoid="a")
    backlog.put_back(failed)
    assert backlog.take(1, "a") == whole(1, 0, 1)
    assert backlog.take(1, "a") is None
    assert backlog.take(1, "b") == failed
    backlog.put_back(failed)
    assert backlog.take(1) == failed
    assert backlog.empty
