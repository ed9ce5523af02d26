"""The parent process of a run.

It splits the texts into chunks, gives each chunk to a worker process, and joins the vectors. It
imports no torch, and of the worker only `chunkvisor_worker.contract`.
"""

from typing import TYPE_CHECKING, Any

from chunkvisor.version import __version__

if TYPE_CHECKING:
    from chunkvisor import testing
    from chunkvisor.api import QuarantineWarning, encode, run
    from chunkvisor.errors import ChunkvisorError, ExitCode
    from chunkvisor.results import FinalFile, QuarantinedRow, Report

__all__ = [
    "ChunkvisorError",
    "ExitCode",
    "FinalFile",
    "QuarantineWarning",
    "QuarantinedRow",
    "Report",
    "__version__",
    "encode",
    "run",
    "testing",
]

_ELSEWHERE = {
    **dict.fromkeys(("ChunkvisorError", "ExitCode"), "chunkvisor.errors"),
    **dict.fromkeys(("FinalFile", "QuarantinedRow", "Report"), "chunkvisor.results"),
}
"""Public names that are not defined in `api`, and the modules that define them."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: the command needs only `__version__`, and at once."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    if name == "testing":
        return importlib.import_module("chunkvisor.testing")
    return getattr(importlib.import_module(_ELSEWHERE.get(name, "chunkvisor.api")), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
