"""Makes the record of a fault out of an exception.

Nothing here raises, whatever the exception is, and no token gets into the record.
"""

import contextlib
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

from chunkvisor_worker.contract.exits import EXIT_OF_OUTCOME, WorkerExit
from chunkvisor_worker.contract.messages import Cause, Fault, Phase
from chunkvisor_worker.contract.taxonomy import diagnose
from chunkvisor_worker.contract.wire import masked, write_message

CHAIN_LIMIT = 8
"""Exceptions of a chain that are recorded."""
MESSAGE_CHARS = 8 << 10
TRACEBACK_CHARS = 32 << 10
_MASKED_CHARS = 256 << 10
"""Of a longer text only the two ends are searched for tokens, and kept: bounds time and memory."""


def fault_of(
    exception: BaseException,
    phase: Phase,
    batch_rows: int = 0,
    batch_tokens: int = 0,
    rows_done: int = 0,
    provoked: bool = False,
) -> Fault:
    """The record of `exception`, raised in `phase`, with the batch under way (0 = none or unknown)."""
    return Fault(
        phase=phase,
        chain=tuple(_cause_of(link) for link in _chain(exception)),
        traceback=_traceback_of(exception),
        batch_rows=batch_rows,
        batch_tokens=batch_tokens,
        rows_done=rows_done,
        provoked=provoked,
    )


@contextlib.contextmanager
def recorded(path: Path, phase: Phase) -> Iterator[None]:
    """A context that nothing raised within it leaves: the process ends, with the record at the path.

    Rust's panics (pyo3's PanicException, of tokenizers or hf_xet) are no Exception, and need their record, too.
    """
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - see above
        fault = fault_of(error, phase)
        try:
            write_message(path, fault)
        except OSError:  # a full disk: the exit code has to say it alone
            with contextlib.suppress(OSError, ValueError):
                traceback.print_exc()
        os._exit(exit_code_of(fault))


def exit_code_of(fault: Fault) -> WorkerExit:
    """With which code a worker ends that leaves this fault."""
    return EXIT_OF_OUTCOME.get(diagnose(fault).outcome, WorkerExit.UNKNOWN)


def _chain(exception: BaseException) -> Iterator[BaseException]:
    """The exceptions that a traceback would show, last raised first; a chain can be a ring."""
    seen: set[int] = set()
    link: BaseException | None = exception
    while link is not None and id(link) not in seen and len(seen) < CHAIN_LIMIT:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _cause_of(exception: BaseException) -> Cause:
    kind = type(exception)
    return Cause(
        name=_name_of(kind),
        bases=tuple(_name_of(base) for base in kind.__mro__[1:-1]),
        message=_message_of(exception),
        error_code=_number(exception, "error_code"),
        errno=_number(exception, "errno"),
        http_status=_number(exception, "response", "status_code"),
    )


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _message_of(exception: BaseException) -> str:
    try:
        message = str(exception)
    except Exception as error:  # noqa: BLE001 - __str__ is anybody's code
        message = f"<str() of the exception raised {type(error).__name__}>"
    return masked(message[:_MASKED_CHARS])[:MESSAGE_CHARS]


def _traceback_of(exception: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(exception))
    except Exception as error:  # noqa: BLE001 - it formats anybody's objects
        return f"<no traceback: formatting it raised {type(error).__name__}>"
    text = masked(_ends(text, _MASKED_CHARS))
    return _ends(text, TRACEBACK_CHARS)


def _ends(text: str, limit: int) -> str:
    """Head and tail: the outermost frames say where, the innermost say what."""
    if len(text) <= limit:
        return text
    gap = "\n[…]\n"
    half = (limit - len(gap)) // 2
    return f"{text[:half]}{gap}{text[-half:]}"


def _number(value: object, *names: str) -> int | None:
    """The integer at the end of the attributes; None where there is none, or a property raises."""
    with contextlib.suppress(Exception):
        for name in names:
            value = getattr(value, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return int(value)
    return None
