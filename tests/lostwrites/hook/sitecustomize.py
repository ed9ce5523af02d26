"""Gives the recorder of lost writes a note with each sync: which lines of ours called it, the innermost first.

It is on PYTHONPATH of every process of a recording, and imported by Python itself before anything else.
"""

import concurrent.futures.thread as threads
import ctypes
import functools
import os
import sys

_NOTE = getattr(ctypes.CDLL(None), "lostwrites_note", None)
_submit = threads.ThreadPoolExecutor.submit


def _lines():
    frame, found = sys._getframe(2), []
    while frame is not None:
        name = frame.f_code.co_filename
        for package in ("/chunkvisor/", "/chunkvisor_worker/"):
            before, _, path = name.rpartition(package)
            if before:
                found.append(f"{package[1:]}{path}:{frame.f_lineno}")
        frame = frame.f_back
    return "|".join(found)


def _noting(function):
    @functools.wraps(function)
    def sync(fd, lines=None):
        _NOTE((_lines() if lines is None else lines).encode()[:1000])
        return function(fd)

    return sync


def _submitting(pool, function, /, *arguments, **options):
    """A sync in another thread was called by whoever handed it over."""
    if function in (os.fsync, os.fdatasync):
        options["lines"] = _lines()
    return _submit(pool, function, *arguments, **options)


if _NOTE is not None:
    os.fsync, os.fdatasync = _noting(os.fsync), _noting(os.fdatasync)
    threads.ThreadPoolExecutor.submit = _submitting
