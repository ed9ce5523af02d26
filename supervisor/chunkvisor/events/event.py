"""The events of a run: frozen dataclasses, whose fields are the keys of their lines in the journal.

`ChunkCommitted(...)` becomes a line with `"event": "chunk_committed"` and a key for each field. A
field with a default may be missing in a line, which an older version may have written.

To add an event, write its class here: with an annotation a name is a field, and without one it is
one of these attributes of the class.

- `words`: what people read of the event, with fields in braces. `{chunks}` becomes `3`, and
  `{chunks:chunk}` becomes `3 chunks`. An event without words is only in the journal. Words that
  depend on more than the fields are made by the property `_sentence`.
- `stage`: what the run is doing from this event on, as status and live view say it.
- `weight`: how much it matters to the person.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import PurePath
from typing import Any, ClassVar, TypeAlias, dataclass_transform

from chunkvisor.errors import lines_of_end
from chunkvisor.units import counted, human_time, listed
from chunkvisor_worker.contract.wire import from_plain


class Weight(IntEnum):
    """How much an event matters to the person."""

    NEWS = 0
    CARE = 1  # something went wrong, and the run handles it
    LOSS = 2  # something is lost, or left undone by this run; shown even with --quiet


CARE = Weight.CARE
LOSS = Weight.LOSS
STARTING = "starting the first workers"
COMPUTING = "computing"
STOPPING = "stopping: the chunks in progress are finished or saved first"
KINDS: dict[str, type["Event"]] = {}
"""Every event, by its name in the journal."""


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Event:
    """Something that happened in a run."""

    name: ClassVar[str] = ""
    weight: ClassVar[Weight] = Weight.NEWS
    words: ClassVar[str] = ""
    stage: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Make the subclass a frozen dataclass, and put it into `KINDS`.

        A class whose name ends in Event is only the base of others, and stays out of `KINDS`.
        """
        # Without eq and repr, which would be compiled for each class at every start of a command.
        dataclass(frozen=True, eq=False, repr=False)(cls)
        cls.name = re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
        if not cls.name.endswith("_event"):
            KINDS[cls.name] = cls

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def details(self) -> dict[str, Any]:
        """Return the values of the fields, as they stand in the journal."""
        return dict(vars(self))

    @property
    def line(self) -> str:
        """What people read of it, on one line without control characters; often empty."""
        return plain(self._sentence)

    @property
    def _sentence(self) -> str:
        """The words with the values of the fields, as they came into the event."""
        values = {
            name: _Count(value) if type(value) is int else value
            for name, value in vars(self).items()
        }
        return self.words.format_map(values)


class _Count(int):
    """An integer for which `{rows:row}` is `3 rows`."""

    def __format__(self, spec: str) -> str:
        is_noun = len(spec) > 1 and spec[0].isalpha()
        return counted(self, spec) if is_noun else super().__format__(spec)


Emit: TypeAlias = Callable[[Event], None]
"""Writes an event into the journal and reports it to the observers."""


def plain(text: str) -> str:
    """Return the text on one line, without control characters, which could steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text).strip()


def event_of(name: object, details: object) -> Event | None:
    """Make an event from its name and details in a journal; None if it is unknown or damaged."""
    return from_plain(KINDS[name], details) if isinstance(name, str) and name in KINDS else None


class Invoked(Event):
    """The first event of a run: it holds the workdir's lock."""

    workdir: str
    command: str = ""  # as it was typed, without secrets; empty for a call from Python


class RunStarted(Event):
    """The run has found its devices and begins to work."""

    workdir: str
    device: str  # all of them, with commas
    gpus: tuple[str, ...] = ()  # UUID of each device; empty for a CPU
    engine: str = ""
    model: str = ""
    outputs: tuple[str, ...] = ()

    @property
    def _sentence(self) -> str:
        what = f"encoding {listed(self.outputs, 3)}" if self.outputs else "working"
        model = f" with {self.model}" if self.model else ""
        devices = "the CPU" if self.device == "cpu" else listed(self.device.split(", "), 2)
        return f"{what}{model} on {devices}, in {self.workdir}"


class WorkPlanned(Event):
    """All sources are read, and the remaining work is known.

    Counts are sums over all outputs that are not complete.
    """

    stage = STARTING
    rows: int
    texts: int
    texts_left: int
    chunks: int
    chunks_left: int
    texts_per_s: float | None = None  # of the last run here
    taken: int = 0  # more texts, whose vectors are reused

    @property
    def _sentence(self) -> str:
        if not self.chunks_left:
            return "nothing left to compute"
        texts = counted(self.texts + self.taken, "text")
        chunks = counted(self.chunks, "chunk")
        todo = f"to do: {self.texts_left:,} of {texts}, {self.chunks_left:,} of {chunks}"
        if not self.texts_per_s:
            return todo
        return (
            f"{todo}; about {human_time(self.texts_left / self.texts_per_s)} at the speed of the "
            f"last run"
        )


class Note(Event):
    """A message for people."""

    words = "{text}"
    text: str


class Warned(Note):
    """Something that a person should look at."""

    weight = CARE


class Alarmed(Note):
    """Something that a person must look at."""

    weight = LOSS


class Doing(Event):
    """The run prepares something that may take a while."""

    stage = "{doing}"
    doing: str


class Waiting(Event):
    """Nothing is started for a while, on one device or on all."""

    weight = CARE
    delay_s: float  # until the next try
    reason: str
    outcome: str = ""
    waited_s: float = 0.0  # so far; 0 = the wait begins
    limit_s: float = 0.0  # how long the run waits at most; 0 = not known
    again: bool = False  # it was reported less than a minute ago

    @property
    def _sentence(self) -> str:
        if self.again:
            return ""
        most = f", for up to {human_time(self.limit_s)}" if self.limit_s else ""
        so_far = (
            f"still waiting, {human_time(self.waited_s)} by now" if self.waited_s else "waiting"
        )
        return f"{so_far}{most}: {self.reason}"


class LimitsLowered(Event):
    """A batch did not fit into memory: from now on batches are smaller."""

    weight = CARE
    rows: int
    tokens: int | None = None  # padded; None if tokens cannot be counted
    where: str = ""  # the kind of device, if there are several

    @property
    def _sentence(self) -> str:
        most = counted(self.rows, "row") if self.tokens is None else counted(self.tokens, "token")
        return f"batches{self.where}: from now on at most {most}"


class Draining(Event):
    """Nothing new is started."""

    words = "{signal}: {how}; a second signal stops at once"
    stage = STOPPING
    signal: str = ""  # or the option that ends the run
    how: str = "finishing the chunks in progress"


class Halted(Event):
    """The last event of a run that did not end well."""

    stage = "ended"
    code: int
    what: str = ""
    why: str = ""
    remedy: str = ""
    log: str = ""
    see: str = ""
    outcome: str = ""  # of the attempt that ended the run, if one did

    @property
    def last_words(self) -> list[str]:
        """The message in lines; none for an end without a message."""
        return lines_of_end(self.details())


class RunEnded(Event):
    """The last event of a run that has ended well."""

    stage = "finished"
    code: int


class Resolving(Event):
    words = stage = "asking the model hub for {model}"
    model: str


class OutputEvent(Event):
    """An event of one output, by its name."""

    output: str


class Staging(OutputEvent):
    stage = "reading the source of {output}"


class OutputOpened(OutputEvent):
    """The source of an output that is not complete has been read."""

    words = (
        "{output}: {rows:row}, {distinct:distinct text}, {chunks:chunk} of up to {chunk_size:,}, "
        "{chunks_done} done"
    )
    rows: int
    distinct: int
    chunks: int
    chunk_size: int = 0
    chunks_done: int = 0
    texts_done: int = 0
    texts_saved: int = 0  # of chunks that are not done
    quarantined: int = 0  # rows, by earlier runs


class OutputAlreadyComplete(OutputEvent):
    words = "{output}: complete already, {rows:row} x {dimension}, {path}"
    rows: int
    dimension: int = 0
    path: str = ""


class Assembling(OutputEvent):
    """The output's chunks are being joined into the final file."""

    words = "{output}: joining {chunks:chunk} into the final file"
    stage = "joining the chunks of {output}"
    chunks: int = 0  # 0 = all vectors are there already


class OutputComplete(OutputAlreadyComplete):
    words = "{output}: complete, {rows:row} x {dimension}, {path}"
    stage = COMPUTING
    truncated: int = 0  # rows whose texts were cut
    max_length: int = 0  # tokens that the model reads; 0 = unknown

    @property
    def _sentence(self) -> str:
        if not self.truncated:
            return super()._sentence
        at = f" at {self.max_length:,} tokens" if self.max_length else ""
        cut = f"{counted(self.truncated, 'row')} cut{at}"
        return f"{super()._sentence}; {cut}, listed in {PurePath(self.path).stem}.truncated.jsonl"


class ChunkEvent(OutputEvent):
    """An event of one chunk of an output, by its number from 0."""

    chunk: int


class AttemptEvent(ChunkEvent):
    """An event of one attempt at a chunk, by its number from 1."""

    attempt: int


class AttemptStarted(AttemptEvent):
    """A worker was started."""

    pid: int = 0  # 0 = on another machine
    device: int = 0
    start: str = ""  # fresh or warm


class Go(AttemptEvent):
    """The worker has its device and batch limits."""

    stage = COMPUTING
    rows: int
    tokens: int | None = None


class WorkerEnded(AttemptEvent):
    """The worker's process has ended; the verdict is another event."""

    returncode: int = 0
    device: int = 0
    startup_s: float = 0.0  # imports, loading and tokenizing
    idle_s: float = 0.0  # how long the device had nothing to compute before the first batch
    busy_s: float = 0.0  # from its first batch until it needed the device no longer
    texts: int = 0
    tokens: int = 0  # without padding; 0 if the encoder cannot count them
    padded_tokens: int = 0
    memory: dict[str, int] = field(default_factory=dict)  # as in its last beat
    batch_peaks: dict[str, int] = field(default_factory=dict)


class WorkerLeaving(AttemptEvent):
    """The worker was asked to end early."""

    words = (
        "{output} chunk {chunk} stops after the current batch, as there is no time; its finished "
        "texts are saved"
    )


class FailureEvent(AttemptEvent):
    """An attempt ended without vectors."""

    outcome: str
    reason: str = ""
    start: int = 0  # its texts are those from `start` up to `stop`
    stop: int = 0
    rule: str = ""  # the name of the rule that recognized the fault
    phase: str = ""
    log: str = ""
    then: str = ""  # what the run does about it; empty if another event says that
    rows: str = ""  # the rows that it was computing when it failed, such as `rows 10 to 19`

    @property
    def at(self) -> str:
        """The rows that it was computing, as the end of a sentence; empty if they are unknown."""
        return f"; it was computing {self.rows}" if self.rows else ""


class AttemptFailed(FailureEvent):
    """An attempt at a whole chunk failed."""

    weight = CARE

    @property
    def _sentence(self) -> str:
        # Attempt 0: no worker could be started.
        which = f", attempt {self.attempt}" if self.attempt else ""
        then = f"; {self.then}" if self.then else ""
        return (
            f"{self.output} chunk {self.chunk}{which}: {self.outcome}: {self.reason}{self.at}{then}"
        )


class PartFailed(FailureEvent):
    """An attempt at a part of a chunk failed."""


class AttemptInterrupted(FailureEvent):
    """It was stopped, or its machine was lost; it counts for nothing."""


class LateCrash(ChunkEvent):
    weight = CARE
    words = (
        "{output} chunk {chunk}: the worker crashed after it had saved its vectors; they are kept"
    )
    returncode: int = 0


class ChunkCommitted(ChunkEvent):
    """All texts of the chunk have their vector, or are in quarantine."""

    texts: int
    texts_done: int  # of the whole output, like `chunks_done` and `chunks`
    chunks_done: int
    chunks: int
    attempt_ok: bool = False  # False if it was put together from parts
    texts_per_s: float | None = None  # since the run began to compute, over all devices
    tokens: int = 0  # of the attempt; those of parts are in their own events
    phase_s: dict[str, float] = field(default_factory=dict)
    texts_before: int = 0  # of `texts`, those done before this run began to work


class PartCommitted(ChunkEvent):
    """Some texts of a chunk have their vectors.

    The chunk is searched for texts that fail, or an earlier attempt had finished the other texts.
    """

    start: int = 0
    stop: int = 0
    texts: int = 0  # at most stop - start: those from `start` up to `stop` that it was given
    tokens: int = 0


class BatchesKept(ChunkEvent):
    """An attempt failed or was stopped, and the batches that it had finished are kept."""

    words = "{output} chunk {chunk}: kept {texts:text} that the attempt had finished"
    texts: int = 0
    tokens: int = 0  # about: as of its last beat


class ChunkSplit(ChunkEvent):
    weight = CARE
    words = (
        "{output} chunk {chunk}: looking for the text that fails among {texts:text}; next: {rows}"
    )
    texts: int = 0  # left to try
    rows: str = ""  # that are tried first
    again: bool = False  # the search was reported before

    @property
    def _sentence(self) -> str:
        # A search may take thirty steps, which the live view shows in its one line.
        return "" if self.again else super()._sentence


class Quarantined(OutputEvent):
    weight = LOSS
    words = "{output} row {row} ({place}) cannot be encoded and gets no vector: {outcome}: {reason}"
    row: int  # the first that has the text
    place: str = ""  # file and line
    outcome: str = ""
    reason: str = ""
    chunk: int = 0
    rows: int = 1  # how many have the text


class ChunkSetAside(ChunkEvent):
    weight = LOSS
    words = "{output} chunk {chunk} is set aside; the next run tries it again: {reason}"
    reason: str = ""


class NodeJoined(Event):
    words = "node {node} has joined, with {device}"
    node: str
    device: str  # all its devices, with commas
    first: int  # number of the first of them


class NodeLost(Event):
    weight = CARE
    words = "node {node} is lost, {left:device} left; its chunks are done elsewhere: {why}"
    node: str
    left: int = 0  # devices that still work
    why: str = ""


class NodeSetAside(NodeLost):
    """A node of the cluster cannot do the job."""

    weight = LOSS
    words = "node {node} is left out, {left:device} left: {why}"


class DeviceDropped(Event):
    weight = LOSS
    words = "{device} is left out, {left:device} left: {why}"
    device: str
    left: int = 0
    why: str = ""


class TemplateEvent(Event):
    pid: int = 0  # 0 = on another machine
    node: str = ""  # empty = on this one


class TemplateStarted(TemplateEvent):
    """A template process begins to load the model; workers are forked from it."""

    stage = "loading the model, once for all workers"


class TemplateReady(TemplateEvent):
    """The template process has loaded the model."""

    phase_s: dict[str, float] = field(default_factory=dict)


class WarmGivenUp(TemplateEvent):
    weight = CARE
    words = "from now on each worker is a new interpreter: the template process failed: {reason}"
    reason: str = ""
