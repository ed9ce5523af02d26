"""Gives the recorder of lost writes a note with each sync: which lines of ours called it, the innermost first.

It is on PYTHONPATH of every process of a recording, and imported by Python itself before anything else.
"""

import concurrent.futures.thread as threads
import ctypes
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

_NOTE = getattr(ctypes.CDLL(None), "lostwrites_note", None)
_submit: Any = threads.ThreadPoolExecutor.submit


def _lines() -> str:
    """Of the caller's caller and up."""
    found, frame = [], sys._getframe(2)
    while frame is not None:
        for package in ("chunkvisor", "chunkvisor_worker"):
            before, _, path = frame.f_code.co_filename.rpartition(f"/{package}/")
            if before:
                found.append(f"{package}/{path}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]  # None ends it
    return "|".join(found)


def _noting(function: Callable[[int], None]) -> Callable[..., None]:
    @functools.wraps(function)
    def sync(fd: int, lines: str | None = None) -> None:
        assert _NOTE is not None
        _NOTE((_lines() if lines is None else lines).encode()[:1000])
        function(fd)

    return sync


def _submitting(pool: Any, function: Any, /, *arguments: Any, **options: Any) -> Any:
    """A sync in another thread was called by whoever handed it over."""
    if function in (os.fsync, os.fdatasync):
        options["lines"] = _lines()
    return _submit(pool, function, *arguments, **options)


if _NOTE is not None:
    os.fsync, os.fdatasync = _noting(os.fsync), _noting(os.fdatasync)
    threads.ThreadPoolExecutor.submit = _submitting  # type: ignore[method-assign]  # in recordings alone
