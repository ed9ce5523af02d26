"""What whoever reads sources says to the process that cuts long texts into windows, and hears from it.

The request lies in a folder. Then each line of JSON on standard input is a list of texts, and its answer on standard
output, a line as well, has a list for each of them: the windows, as [first character, one past the last]. Before them
comes a line that says why there will be no answers, or is null.
"""

from dataclasses import dataclass
from pathlib import Path

from chunkvisor_worker.contract.files import FileIn
from chunkvisor_worker.contract.messages import EncodeSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class WindowsRequest:
    """How texts are cut."""

    model: ModelSpec
    """Without `path`, the tokenizer's files are looked up in the hub, and nothing else of the model."""
    encode: EncodeSpec
    """Its prompt is read with each window, and takes room of it."""
    overlap: int | None = None
    """Tokens that a window has in common with the one before it; None = an eighth of its room."""


@dataclass(frozen=True, slots=True)
class WindowsFiles:
    """Every path in the folder of one request, named once."""

    folder: Path

    request = FileIn("request.json")
    """A WindowsRequest."""
    fault = FileIn("fault.json")
    """A Fault: why there is no answer."""
    log = FileIn("windows.log")
    """Standard error of the process."""
