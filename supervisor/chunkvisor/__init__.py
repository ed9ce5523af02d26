"""The parent process of a run.

It splits the input into chunks, gives each a worker process, and assembles what they leave.

It imports no torch, and of the worker nothing but `chunkvisor_worker.contract`.
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
"""Public names that are not of `api`."""


def __getattr__(name: str) -> Any:
    """Import the public names when they are asked for.

    The command needs `__version__` alone, and is to be fast.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    if name == "testing":
        return importlib.import_module("chunkvisor.testing")
    return getattr(importlib.import_module(_ELSEWHERE.get(name, "chunkvisor.api")), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
