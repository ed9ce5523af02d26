"""What attempts have left, without a look at their vectors: their logs, how they ended, whether anything is kept.

No numpy is imported here: what opens a run reads it before the model is looked for.
"""

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from chunkvisor.judge import Evidence, Verdict, judge
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor_worker.contract.files import AttemptFiles, read_bounded
from chunkvisor_worker.contract.messages import Fault
from chunkvisor_worker.contract.wire import read_batch_log, read_message

LOG_TAIL_BYTES = 64 << 10
_SEARCHED = 100
"""Failed attempts that are searched for one, at most."""


def last_log(files: AttemptFiles) -> Path | None:
    """The attempt's log; where it has none, the newest of the other attempts at its chunk; None where there is none.

    The folder may also be that of all attempts at a chunk.
    """
    if files.log.is_file():
        return files.log
    return newest_log([*files.folder.glob(f"*/{files.log.name}"), *files.folder.parent.glob(f"*/{files.log.name}")])


def failed_as(attempts: Path, outcome: str, reason: str) -> tuple[str, Path | None]:
    """(rule, log) of the newest failed attempt of an output that ended so; else ("", the newest of all logs)."""
    logs = sorted((_written(log), log) for log in attempts.glob(f"*/*/{AttemptFiles(attempts).log.name}"))
    for _, log in reversed(logs[-_SEARCHED:]):
        try:
            verdict = json.loads(read_bounded(AttemptFiles(log.parent).verdict) or b"")
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(verdict, dict) and (verdict.get("outcome"), verdict.get("reason")) == (outcome, reason):
            return str(verdict.get("rule", "")), log
    return "", logs[-1][1] if logs else None


def newest_log(logs: Iterable[Path]) -> Path | None:
    """The one that was written last; one that vanishes meanwhile is none."""
    return max(logs, key=_written, default=None)


def _written(path: Path) -> int:
    """When, in nanoseconds; 0 where it has vanished."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def last_line(text: str) -> str:
    """The last one of a log that is not blank; empty where there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def read_tail(path: Path, size_bytes: int = LOG_TAIL_BYTES) -> str:
    """The last bytes of a log, as text; empty where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size_bytes))
            return file.read(size_bytes).decode(errors="replace")
    except OSError:
        return ""


def verdict_of_child(returncode: int, fault: Path, log: Path) -> Verdict:
    """Why there is no result, even where it ended with 0."""
    return judge(Evidence(returncode or 1, fault=read_message(Fault, fault), log_tail=read_tail(log)))


def anything_kept(layout: Layout) -> bool:
    """Whether a text of any output has its vector, be it in the finished batches of an attempt that was stopped."""
    with contextlib.suppress(OSError):
        outputs = [layout.output(folder.name) for folder in layout.outputs.iterdir()]
        return any(map(_has_vectors, outputs)) or any(map(_has_batches, outputs))
    return False


def _has_vectors(output: OutputLayout) -> bool:
    """Those of its final file, of a chunk, or of a part of one."""
    files = (path for folder in (output.chunks, output.parts) for path in folder.glob("*/*.npy"))
    return output.done.exists() or next(files, None) is not None


def _has_batches(output: OutputLayout) -> bool:
    stopped = (AttemptFiles(folder) for folder in output.attempts.glob("*/*/"))
    return any(read_batch_log(files.batches).written for files in stopped if not files.verdict.exists())
