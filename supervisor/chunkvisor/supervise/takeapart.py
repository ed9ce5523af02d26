"""How the texts of a failed attempt are taken apart, to find those that fail.

Pure: it makes the tasks; whoever asks puts them back.
"""

from collections.abc import Sequence
from typing import Any

from chunkvisor.supervise.runhistory import AttemptEnd
from chunkvisor.supervise.task import NOW, Task
from chunkvisor_worker.contract.messages import Tier

_ONE_BY_ONE = Tier(min_length=0, rows=1)


def part_of(end: AttemptEnd, texts: Sequence[int], **changes: Any) -> Task:
    """Some of its texts, to be tried by themselves."""
    task = end.task
    fresh = Task(NOW, task.output, task.chunk, task.start, task.stop, fresh=True, avoid=end.avoid, part=True)
    return fresh.of(texts, **changes)


def suspects_apart(end: AttemptEnd) -> list[Task]:
    """The suspects, to be tried one by one, so that the next end tells which it is; and the others by themselves."""
    task, suspects = end.task, end.suspects
    others = sorted(set(task.wanted).difference(suspects))
    parts = [part_of(end, suspects, tier=None if len(suspects) == 1 else _ONE_BY_ONE)]
    return parts + ([part_of(end, others, tier=task.tier)] if others else [])
