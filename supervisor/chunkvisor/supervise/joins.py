"""Outputs whose chunks are all committed, on their way to a final file.

Pure: the driver joins, and says what came of it.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from chunkvisor.decide import lastwords
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise import stimuli as on
from chunkvisor.supervise.backlog import Backlog, Progress, Task

MAX_DAMAGED = 3
"""More damaged chunks of one output are no accident."""

PAUSE_S = 5.0
"""Before a join that met a full disk is tried again."""


class Joins:
    """What is being joined, and what waits for it."""

    def __init__(
        self,
        outputs: Sequence[Progress],
        backlog: Backlog,
        wait_timeout_s: float,
        say: Callable[[do.Instruction], None],
    ) -> None:
        self._outputs = outputs
        self._backlog = backlog
        self._wait_timeout_s = wait_timeout_s
        self._say = say
        self._under_way: set[int] = set()
        self._damaged: Counter[int] = Counter()
        self._waiting_since_s: dict[int, float] = {}
        self._again_s: dict[int, float] = {}

    @property
    def working(self) -> bool:
        """Whether an output is being joined."""
        return bool(self._under_way)

    @property
    def waiting(self) -> bool:
        """Whether a join waits for disk space."""
        return bool(self._again_s)

    def begin_if_complete(self, number: int) -> None:
        """Join the output if all its chunks are committed."""
        if self._outputs[number].complete and number not in self._under_way:
            self._under_way.add(number)
            self._say(do.Join(number))

    def turn(self, now_s: float) -> None:
        """Try again what is due."""
        if not self._again_s:
            return
        for number in [number for number, due_s in self._again_s.items() if now_s >= due_s]:
            del self._again_s[number]
            self.begin_if_complete(number)

    def heed(self, stimulus: on.JoinStimulus, now_s: float) -> None:
        """Take note of how a join went."""
        number = stimulus.output
        self._under_way.discard(number)
        match stimulus:
            case on.Joined():
                self._waiting_since_s.pop(number, None)
            case on.JoinWaits():
                since_s = self._waiting_since_s.setdefault(number, now_s)
                if now_s - since_s >= self._wait_timeout_s:
                    self._say(do.HaltRun(stimulus.halt))
                self._again_s[number] = now_s + PAUSE_S
            case on.ChunkDamaged():
                self._damaged[number] += 1
                if self._damaged[number] > MAX_DAMAGED:
                    self._say(do.HaltRun(lastwords.damaged_again(self._outputs[number].name, stimulus.chunk)))
                elif self._backlog.handed_out(number, stimulus.chunk):  # else it comes to it by itself
                    bounds = self._outputs[number].bounds(stimulus.chunk)
                    self._backlog.put_back(Task(now_s, number, stimulus.chunk, *bounds))
