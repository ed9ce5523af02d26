"""Events of an output: its source is read, it is opened, its chunks are joined."""

from chunkvisor.events.event import Event, Severity, event
from chunkvisor.units import counted


@event("{output}: reading the source")
class Staging(Event):
    output: str


@event("{output}: {rows:row}, {distinct:distinct text}")
class Staged(Event):
    output: str
    rows: int
    distinct: int


@event("{output}: {work}")
class OutputOpened(Event):
    """There is work to do for it."""

    output: str
    rows: int
    distinct: int
    """Different texts."""
    chunks: int
    chunk_size: int = 0
    chunks_done: int = 0
    texts_done: int = 0
    texts_saved: int = 0
    """Of chunks that are not done."""
    quarantined: int = 0
    """Rows that earlier runs have given up."""

    @property
    def work(self) -> str:
        """Its chunks, and how many of them are done already."""
        if not self.chunks:
            return "every text has a vector already"
        done = f", {self.chunks_done:,} done already" if self.chunks_done else ""
        return f"{counted(self.chunks, 'chunk')} of up to {counted(self.chunk_size, 'text')}{done}"


@event("{output}: {taken:,} of {texts:text} already have a vector{sources}; {encoded:,} left to encode")
class TextsReused(Event):
    """Some of its texts are not encoded again."""

    output: str
    texts: int
    """Distinct texts of the output."""
    taken: int
    encoded: int
    sources: str = ""
    """In words, after a comma: where the vectors come from."""


@event("{output}: the source has changed: {rows_before:row} before, {rows:,} now; this is generation {generation}")
class GenerationBegun(Event):
    """Its source has changed, and the run was told to take it as it is now."""

    output: str
    generation: int
    rows_before: int
    rows: int


@event("{output}: no vectors are reused from {origin}: {problem}", Severity.CARE)
class ReuseRefused(Event):
    """What has vectors of its texts is damaged."""

    output: str
    origin: str
    problem: str


@event("{output}: complete already, {rows:row} x {dimension}, {path}")
class OutputAlreadyComplete(Event):
    output: str
    rows: int
    dimension: int = 0
    path: str = ""


@event("{output}: joining {parts} into the final file")
class Assembling(Event):
    output: str
    chunks: int = 0
    """0 = all vectors are there already."""

    @property
    def parts(self) -> str:
        """Of what it is made."""
        return counted(self.chunks, "chunk") if self.chunks else "vectors that are there already"


@event(
    "{output}: some rows were computed with other library versions: {changed}; the manifest names all",
    Severity.CARE,
)
class OtherVersions(Event):
    """A chunk was computed by other versions than the first one."""

    output: str
    changed: str
    """In words: which, before and now."""


@event("{output}: waiting for disk space: {reason}", Severity.CARE)
class WaitingToJoin(Event):
    output: str
    reason: str


@event("{output}: complete, {rows:row} x {dimension}, {path}{cut}")
class OutputComplete(Event):
    output: str
    rows: int
    dimension: int = 0
    path: str = ""
    truncated: int = 0
    """Rows whose texts were cut."""
    max_length: int = 0
    """Tokens that the model reads; 0 = unknown."""

    @property
    def cut(self) -> str:
        """How many texts were cut, in words; empty if none was."""
        if not self.truncated:
            return ""
        was = "was" if self.truncated == 1 else "were"
        at = f" at {self.max_length:,} tokens" if self.max_length else ""
        # `chunkvisor encode` puts the file where the person wants it.
        name = self.path.rpartition("/")[2].removesuffix(".npy").removesuffix(".parquet") or self.output
        return f"; {counted(self.truncated, 'row')} {was} cut{at}, listed in {name}.truncated.jsonl"
