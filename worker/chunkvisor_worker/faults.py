"""Makes the record of a fault from an exception, without raising, and without secrets."""

import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from chunkvisor_worker import Busy
from chunkvisor_worker.contract.exits import DISK_ERRNOS, WorkerExit
from chunkvisor_worker.contract.messages import Beat, Cause, Fault, Phase
from chunkvisor_worker.contract.rules import ANSWERED
from chunkvisor_worker.contract.secrets import masked
from chunkvisor_worker.contract.wire import write_message

CHAIN_LIMIT = 8
MESSAGE_CHARS = 8 << 10
REPLY_CHARS = 500  # of a server's answer
TRACEBACK_CHARS = 32 << 10
_MASKED_CHARS = 256 << 10  # of a longer text, only both ends are kept and searched for secrets


def fault_of(exception: BaseException, phase: Phase, beat: Beat | None = None) -> Fault:
    """Return the record of `exception`, raised in `phase`, with the batch in progress."""
    beat = beat or Beat(0, 0, phase)
    chain: list[BaseException] = []
    link: BaseException | None = exception
    # What a traceback would show, last raised first; a chain can be a ring.
    while link is not None and all(link is not each for each in chain) and len(chain) < CHAIN_LIMIT:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    try:
        stack = "".join(traceback.format_exception(exception))
    except Exception as error:  # noqa: BLE001 - it formats objects of any kind
        stack = f"<no traceback: formatting it raised {type(error).__name__}>"
    return Fault(
        phase=phase,
        chain=tuple(_cause_of(each, with_reply=phase is Phase.FORWARD) for each in chain),
        traceback=_ends(masked(_ends(stack, _MASKED_CHARS)), TRACEBACK_CHARS),
        batch_rows=beat.batch_rows,
        batch_tokens=beat.batch_tokens,
        rows_done=beat.rows_done,
        wait_s=max(map(_wait_s, chain)),
    )


@contextmanager
def recorded(path: Path, phase: Phase) -> Iterator[None]:
    """Make a context in which whatever is raised ends the process, with the record at the path."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - a panic in Rust is not an Exception
        os._exit(write_fault(path, fault_of(error, phase)))


def write_fault(path: Path, fault: Fault) -> WorkerExit:
    """Write the record, and return the code to end with.

    If a full or failing disk does not take the record, the code has to say so.
    """
    try:
        write_message(path, fault, durable=True)  # a full disk may show only then
    except OSError as error:
        log_traceback()
        return WorkerExit.DISK_FULL if error.errno in DISK_ERRNOS else WorkerExit.NO_RECORD
    return WorkerExit.FAULT


def log_traceback() -> None:
    """Print what was raised, if standard error is still there."""
    with suppress(OSError, ValueError):
        traceback.print_exc()


def _cause_of(exception: BaseException, *, with_reply: bool) -> Cause:
    try:
        message = str(exception)
    except Exception as error:  # noqa: BLE001 - __str__ is any code
        message = f"<str() of the exception raised {type(error).__name__}>"
    # As requests and httpx have it, and as urllib and aiohttp do.
    status = _number(exception, "response", "status_code") or _number(exception, "status")
    if with_reply and status is not None:
        first, newline, rest = message.partition("\n")
        message = f"{first}; {ANSWERED} {status}: {_reply_of(exception)}{newline}{rest}"
    name, *bases = (
        f"{kind.__module__}.{kind.__qualname__}" for kind in type(exception).__mro__[:-1]
    )
    return Cause(
        name=name,
        bases=tuple(bases),
        message=masked(message[:_MASKED_CHARS])[:MESSAGE_CHARS],
        error_code=_number(exception, "error_code"),
        errno=_number(exception, "errno"),
        http_status=status,
    )


def _reply_of(exception: Any) -> str:
    """Return the beginning of what the server answered, in one line; empty if it cannot be read."""
    with suppress(Exception):
        if hasattr(exception, "response"):
            text = exception.response.text
        else:
            text = exception.read(4 * REPLY_CHARS).decode(errors="replace")
        return " ".join(text[:REPLY_CHARS].split())
    return ""


def _wait_s(exception: BaseException) -> float:
    """Return the seconds that `Busy` or a Retry-After (seconds or a date) asks for, else 0."""
    with suppress(Exception):
        if isinstance(exception, Busy):
            return min(float(exception.seconds), 1e6)  # no infinity: JSON has none
        answer: Any = getattr(exception, "response", exception)
        said = str(answer.headers["Retry-After"])
        return (
            float(said) if said.isdigit() else parsedate_to_datetime(said).timestamp() - time.time()
        )
    return 0.0


def _ends(text: str, limit: int) -> str:
    """Shorten a traceback to its two ends: the outermost frames say where, the innermost what."""
    half = limit // 2 - 3
    return text if len(text) <= limit else f"{text[:half]}\n[…]\n{text[-half:]}"


def _number(value: object, *names: str) -> int | None:
    """Return the integer behind these attributes; None if there is none, or a property raises."""
    with suppress(Exception):
        for name in names:
            value = getattr(value, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return int(value)
    return None
