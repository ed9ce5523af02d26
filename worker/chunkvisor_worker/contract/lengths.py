"""What the supervisor asks and hears about the lengths of texts in tokens, before any run.

Texts and lengths lie in files of their own.
"""

from dataclasses import dataclass
from pathlib import Path

from chunkvisor_worker.contract.files import FileIn
from chunkvisor_worker.contract.messages import EncodeSpec, Limits, ModelSpec


@dataclass(frozen=True, slots=True)
class LengthsTask:
    """The texts of one output."""

    texts: str
    """File of the texts in UTF-8, one after the other."""
    offsets: str
    """File of uint64, little-endian, one more than there are texts: where each begins, and the end."""
    count: int
    """Texts in the files."""
    chunk_size: int
    """Texts in a chunk; batches never reach beyond one."""
    every: int
    """Of how many chunks one is looked at, beginning with the first; 1 = all."""
    encode: EncodeSpec
    limits: Limits


@dataclass(frozen=True, slots=True)
class LengthsRequest:
    """Texts of several outputs, for one model."""

    model: ModelSpec
    """Without `path`, the tokenizer's files are looked up in the hub, and nothing else of the model."""
    tasks: tuple[LengthsTask, ...]


@dataclass(frozen=True, slots=True)
class LengthsReport:
    """Of one task; the lengths themselves are in `LengthsFiles.lengths`."""

    max_length: int | None
    """Tokens the model reads of a text, None where it has no limit."""
    estimated: bool
    """Tokens could not be counted, and were estimated from bytes, as the encoder will do."""
    tokens: int
    """Of the texts looked at, as cut by `max_length`."""
    padded_tokens: int
    """Tokens of their batches, padding included."""
    batches: int


@dataclass(frozen=True, slots=True)
class LengthsAnswer:
    """The reports, in the order of the tasks."""

    path: str
    """Folder of the model, or of as much of it as is here."""
    reports: tuple[LengthsReport, ...]


@dataclass(frozen=True, slots=True)
class LengthsFiles:
    """Every path in the folder of one question, named once."""

    folder: Path

    request = FileIn("request.json")
    """A LengthsRequest, written by the supervisor."""
    answer = FileIn("answer.json")
    """A LengthsAnswer, written last."""
    fault = FileIn("fault.json")
    """A Fault: why there is no answer."""
    log = FileIn("lengths.log")
    """Standard output and standard error of the child."""

    def lengths(self, task: int) -> Path:
        """int32 array of shape (texts looked at,), by `numpy.save`: tokens before any cut, special ones included."""
        return self.folder / f"lengths{task}.npy"
