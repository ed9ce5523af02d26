"""The folder of one attempt.

Filled for the worker, and read afterwards for what it leaves and for why it ended.

numpy is imported late: whatever opens a run or shows one reads logs by this, before any vector.
"""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from chunkvisor.judge import Evidence, Verdict, judge
from chunkvisor.store.disk import free_bytes
from chunkvisor_worker.contract.files import AttemptFiles, read_bounded, remove_folder, sync_folder
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Beat, Facts, Fault, Phase, Result, Spec
from chunkvisor_worker.contract.wire import read_batch_log, read_beat, read_message, write_message

LOG_TAIL_BYTES = 64 << 10
_LOG_LIMIT_BYTES = 16 << 20
_SEARCHED = 100  # failed attempts that are searched for one, at most
_MAX_LISTED = 1000  # with more bad rows than this, it is not single texts
_PAIR_BYTES = 8  # of `AttemptFiles.cut`: a position and a number of tokens


def write_attempt(
    files: AttemptFiles, draft: Spec, texts: Iterable[str], canary: str | None = None
) -> Spec:
    """Write the texts, as they come, and the spec into a new folder. Returns the spec.

    Raises OSError.

    The draft lacks `stop`, the digest of the texts, and whether there is a canary, which stands
    among the texts since it may be as long as any. Nothing is synced to the disk: an attempt that a
    power cut took is done again. No worker reads the texts before the spec is there, so they need
    no rename.
    """
    digest = hashlib.sha256()
    count = 0
    with open(files.texts, "wb") as file:
        for text in itertools.chain(texts, [] if canary is None else [canary]):
            line = json.dumps(text, ensure_ascii=True).encode() + b"\n"
            digest.update(line)
            file.write(line)
            count += 1
    own = count if canary is None else count - 1
    stop = draft.start + own + len(draft.skip)
    spec = replace(draft, stop=stop, texts_digest=digest.hexdigest(), canary=canary is not None)
    write_message(files.spec, spec, durable=False)
    return spec


def read_evidence(
    files: AttemptFiles,
    spec: Spec,
    known: Facts | None,
    is_blank: Callable[[int], bool],
    end: Evidence,
) -> Evidence:
    """Add what the folder tells to what is known of an attempt's end.

    Raises nothing: unreadable is evidence, too.

    `known` are the facts of the chunks committed before, `is_blank(i)` says whether the i-th text
    of the attempt has nothing but white space: the only texts whose vectors may be zero throughout.
    """
    result = read_message(Result, files.result)
    beat = read_beat(files.beat)
    asks = "fingerprint", "output", "chunk", "start", "stop"
    if result is not None and any(getattr(result, name) != getattr(spec, name) for name in asks):
        result = None
    if files.folder.exists() and not os.path.lexists(files.beat):  # it died before its first line
        beat = Beat(0, 0, Phase.START)
    evidence = replace(
        end,
        result=result,
        fault=read_message(Fault, files.fault),
        beat=beat,
        log_tail=read_tail(files.log),
        disk_free_bytes=free_bytes(files.folder),
        on_cpu=spec.device == "cpu",
    )
    return (
        evidence
        if result is None
        else _with_vectors(evidence, files.vectors, result, spec, known, is_blank)
    )


def _with_vectors(
    evidence: Evidence,
    path: Path,
    result: Result,
    spec: Spec,
    known: Facts | None,
    is_blank: Callable[[int], bool],
) -> Evidence:
    """Add what is wrong with the vectors that the result speaks of."""
    from chunkvisor.store.artifact import BadVectorsError, inspect

    try:
        found = inspect(path, skip=frozenset(spec.skip))
    except BadVectorsError as error:
        return replace(evidence, vectors_problem=str(error))
    except OSError as error:
        return replace(evidence, vectors_problem=f"cannot be read: {error.strerror}")
    facts = result.facts
    dimension = found.shape.dimension
    rows = found.shape.rows
    problem = ""
    other_dimension = False
    bad = list[int]()
    if found.digest != result.digest:
        problem = "differ from the ones recorded in result.json (another digest)"
    elif rows != result.stop - result.start:
        problem = f"are {rows} for {result.stop - result.start} texts"
    elif dimension != facts.dimension:
        problem = f"have dimension {dimension}, the result says {facts.dimension}"
    elif known is not None and dimension != known.dimension:
        problem = f"have dimension {dimension}, the chunks before have {known.dimension}"
        other_dimension = True
    elif known is not None and facts.dtype != known.dtype:
        problem = f"come from weights in {facts.dtype}, the chunks before from {known.dtype}"
    else:
        not_finite = found.not_finite.tolist()
        zero = [row for row in found.zero.tolist() if not is_blank(row)]
        if bad := sorted(not_finite + zero):
            worst = not_finite or zero
            problem = "have NaN or infinity" if not_finite else "are zero throughout"
            if rows > 1:
                problem += f" in {len(worst):,} of {rows:,} rows (text {worst[0]} first)"
    few = tuple(bad) if len(bad) <= _MAX_LISTED else ()
    return replace(
        evidence, vectors_problem=problem or None, other_dimension=other_dimension, bad_rows=few
    )


@frozen
class Salvage:
    """What is left of an attempt without a result.

    Positions count from the first text of its spec.
    """

    done: tuple[int, ...] = ()
    """Texts whose vectors are in its partial file, verified."""
    under_way: tuple[int, ...] = ()
    """Texts of the batches that had begun and were not written: one may be what ended it."""


def find_salvage(
    files: AttemptFiles, spec: Spec, known: Facts | None, is_blank: Callable[[int], bool]
) -> Salvage:
    """Say what is left of the attempt, for `known` and `is_blank` as in `read_evidence`.

    Raises nothing.
    """
    import numpy as np
    import xxhash

    from chunkvisor.store.artifact import BadVectorsError, bad_rows, pick_rows, read_shape

    record = read_batch_log(files.batches)
    rows = spec.stop - spec.start
    wanted = set(range(rows)).difference(spec.skip)
    nothing = Salvage(under_way=tuple(sorted(wanted.intersection(record.under_way))))
    facts = record.facts
    done = set[int]()
    if facts is None or (
        known is not None and (known.dimension, known.dtype) != (facts.dimension, facts.dtype)
    ):
        return nothing
    try:
        with open(files.partial, "rb") as file:
            shape = read_shape(file)
        if (shape.rows, shape.dimension) != (rows, facts.dimension):
            return nothing
        for batch, digest in record.written:
            if wanted.issuperset(batch):
                block = pick_rows(
                    files.partial, "<f4", shape.offset_bytes, shape.dimension, np.array(batch)
                )
                if xxhash.xxh3_64_hexdigest(block.data) == digest:
                    not_finite, zero = (found.tolist() for found in bad_rows(block))
                    refused = {batch[at] for at in not_finite} | {
                        batch[at] for at in zero if not is_blank(batch[at])
                    }
                    done |= set(batch) - refused
    except (BadVectorsError, OSError, ValueError):
        return nothing
    return replace(nothing, done=tuple(sorted(done)))


def keep_cut_lengths(path: Path, texts: int, attempt: Path, start: int, stop: int) -> None:
    """Take over which of the texts start..stop an attempt has cut, from its file into `path`.

    Raises OSError.

    `path` has the tokens before the cut of each of the output's `texts`. A pair that cannot be is
    passed over.
    """
    import numpy as np

    from chunkvisor.store.artifact import read_exactly

    try:
        with open(attempt, "rb") as file:
            data = file.read(_PAIR_BYTES * 2 * (stop - start))  # a canary is tokenized twice
    except FileNotFoundError:
        return
    pairs = np.frombuffer(data[: len(data) // _PAIR_BYTES * _PAIR_BYTES], dtype="<i4").reshape(
        -1, 2
    )
    pairs = pairs[(pairs[:, 0] >= 0) & (pairs[:, 0] < stop - start) & (pairs[:, 1] > 0)]
    if len(pairs):
        tokens = np.zeros(stop - start, dtype="<i4")
        with open(os.open(path, os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as out:
            os.ftruncate(out.fileno(), 4 * texts)
            # Read and written, not mapped: a write to a map of a file with holes is killed by a
            # full disk.
            read_exactly(out.fileno(), tokens.view(np.uint8).data, 4 * start)
            tokens[pairs[:, 0]] = pairs[:, 1]
            os.pwrite(out.fileno(), tokens.data, 4 * start)
            os.fsync(out.fileno())
        sync_folder(path.parent)


@frozen
class AttemptFolder:
    """The folder of an attempt that runs, or has ended, as the loop has it."""

    files: AttemptFiles
    spec: Spec
    _known: Callable[[], Facts | None]
    """Facts of the chunks committed before."""
    _is_blank: Callable[[int], bool]
    """Whether the i-th text of the attempt has nothing but white space."""

    def beat(self) -> Beat | None:
        """Read the worker's sign of life; keep its log from growing without end."""
        trim_log(self.files.log)
        return read_beat(self.files.beat)

    def add_log_line(self, line: str) -> None:
        """Add a line to the worker's log."""
        with contextlib.suppress(OSError), open(self.files.log, "a", encoding="utf-8") as log:
            log.write(f"{line}\n")

    def evidence_of_end(self, end: Evidence) -> Evidence:
        """Add what the folder tells to what is known of the end; see `read_evidence`."""
        return read_evidence(self.files, self.spec, self._known(), self._is_blank, end)

    def salvage(self) -> Salvage:
        """Say what is left of an attempt without a result; see `find_salvage`."""
        return find_salvage(self.files, self.spec, self._known(), self._is_blank)

    def canary_passed(self) -> bool:
        """Say whether its canary got a vector, and one like those before.

        A canary of another dimension shows a model that is not the one that made them.
        """
        canary = read_batch_log(self.files.batches).canary
        known = self._known()
        return canary is not None and (known is None or known.dimension == canary.dimension)

    def result(self) -> Result | None:
        """Read what the worker says of its vectors.

        None if it left nothing, or nothing that can be read.
        """
        return read_message(Result, self.files.result)

    def facts_of_batches(self) -> Facts | None:
        """Read what the worker found of the model, as its batch log has it."""
        return read_batch_log(self.files.batches).facts

    def keep_cut_lengths(self, cut: Path, texts: int) -> None:
        """Keep in the file `cut` how long its texts were before the cut; see `keep_cut_lengths`.

        Raises OSError.
        """
        keep_cut_lengths(cut, texts, self.files.cut, self.spec.start, self.spec.stop)

    @property
    def is_judged(self) -> bool:
        """Whether it has ended, and failed: then it is for a person to read."""
        return self.files.verdict.exists()

    def record_verdict(self, verdict: Verdict) -> None:
        """Leave the verdict for people to read.

        An attempt that the run itself ended leaves nothing.
        """
        if verdict.asked_for:
            self.remove()
            return
        with contextlib.suppress(OSError):  # on a full disk the journal may still have it
            write_message(self.files.verdict, verdict, durable=False)

    def drop_bulk(self) -> None:
        """Remove the vectors of a failed attempt.

        Record and log are left to read, and texts to try by hand.
        """
        if not self.is_judged:
            return
        with contextlib.suppress(OSError):
            for path in (self.files.vectors, self.files.partial):
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove it whole; the folder of the chunk stays if there are others, with their logs."""
        remove_folder(self.files.folder)
        with contextlib.suppress(OSError):
            self.files.folder.parent.rmdir()

    def find_log(self) -> Path | None:
        """Find its log, or the newest of the chunk."""
        return find_log(self.files)


def verdict_of_child(returncode: int, fault: Path, log: Path) -> Verdict:
    """Say why a child has left no result, even if it ended with 0."""
    return judge(
        Evidence(returncode or 1, fault=read_message(Fault, fault), log_tail=read_tail(log))
    )


def find_log(files: AttemptFiles) -> Path | None:
    """Find the attempt's log; if it has none, the newest of the other attempts at its chunk.

    The folder may also be that of all attempts at a chunk.
    """
    folders = files.folder, files.folder.parent
    logs = (
        [files.log]
        if files.log.is_file()
        else [log for each in folders for log in each.glob(f"*/{files.log.name}")]
    )
    return max(logs, key=_written, default=None)


def failed_as(attempts: Path, outcome: str, reason: str) -> tuple[str, Path | None]:
    """Return (rule, log) of an output's newest failed attempt that ended so.

    Else ("", the newest of all logs).
    """
    logs = sorted(
        attempts.glob(f"*/*/{AttemptFiles(attempts).log.name}"), key=_written, reverse=True
    )
    for log in logs[:_SEARCHED]:
        try:
            verdict = json.loads(read_bounded(AttemptFiles(log.parent).verdict) or b"{}")
            if (verdict["outcome"], verdict["reason"]) == (outcome, reason):
                return str(verdict.get("rule", "")), log
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return "", next(iter(logs), None)


def _written(path: Path) -> int:
    with contextlib.suppress(OSError):  # it may vanish
        return path.stat().st_mtime_ns
    return 0


def last_line(text: str) -> str:
    """Return the last line of a log that is not blank; empty if there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def trim_log(path: Path) -> None:
    """Empty a log that has grown too large: a chatty library must not fill the disk overnight."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > _LOG_LIMIT_BYTES:
            os.truncate(path, 0)


def read_tail(path: Path, size_bytes: int = LOG_TAIL_BYTES) -> str:
    """Return the last bytes of a log, as text; empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size_bytes))
            return file.read(size_bytes).decode(errors="replace")
    except OSError:
        return ""
