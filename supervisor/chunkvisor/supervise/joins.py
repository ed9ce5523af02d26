"""Puts together what is done: the parts of a chunk, the chunks of an output.

Pure: the driver does it, and says what came of it.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from chunkvisor.decide import lastwords
from chunkvisor.supervise import instructions as do
from chunkvisor.supervise import stimuli as on
from chunkvisor.supervise.backlog import Backlog
from chunkvisor.supervise.progress import Progress
from chunkvisor.supervise.task import NOW, Task

MAX_DAMAGED = 3
"""More damaged chunks of one output are no accident."""

PAUSE_S = 5.0
"""Before a join that met a full disk is tried again."""


class Joins:
    """Chunks that were taken apart, and outputs on their way to a final file."""

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
        self._done: set[int] = set()
        self._damaged: Counter[int] = Counter()
        self._waiting_since_s: dict[int, float] = {}
        self._again_s: dict[int, float] = {}
        self._without_facts: set[tuple[int, int]] = set()
        """(output, chunk) of chunks that hold nothing but bad texts, while the dimension is not known yet."""

    @property
    def working(self) -> bool:
        """Whether an output is being joined."""
        return bool(self._under_way)

    @property
    def waiting(self) -> bool:
        """Whether a join waits for disk space."""
        return bool(self._again_s)

    def compose_if_known(self, number: int, chunk: int) -> None:
        """Put a chunk that was taken apart together once each of its texts has a vector or a verdict."""
        output = self._outputs[number]
        if output.missing(chunk):
            return
        if output.has_facts:
            first = output.bounds(chunk)[0]
            self._say(do.Compose(Task(NOW, number, chunk, first, first)))
        elif output.bad_count >= output.texts:
            self._say(do.HaltRun(lastwords.all_bad(output.name, output.last_bad)))
        else:
            # Other texts may be good; until then its chunks stay in parts.
            self._without_facts.add((number, chunk))

    def compose_late(self) -> None:
        """Put together what waited for the dimension, where it is known now."""
        for number, chunk in sorted(self._without_facts):
            if self._outputs[number].has_facts:
                self._without_facts.discard((number, chunk))
                self.compose_if_known(number, chunk)

    def begin_if_complete(self, number: int) -> None:
        """Join the output if all its chunks are committed, and what it takes over from is joined."""
        if self._outputs[number].complete and number not in self._under_way | self._done:
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
                self._done.add(number)
                for other in range(len(self._outputs)):  # one of them may have waited for this one
                    self.begin_if_complete(other)
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
