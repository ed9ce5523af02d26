"""The folder of one attempt: filled for the worker, and read for what it left and why it ended.

numpy is imported late: commands that only show a run use this module to read logs.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from chunkvisor.judge import Evidence, Verdict, judge
from chunkvisor.store.disk import least_free_bytes
from chunkvisor_worker.contract.files import AttemptFiles, read_json, remove_folder, sync
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import Beat, Facts, Fault, Phase, Result, Spec
from chunkvisor_worker.contract.secrets import masked
from chunkvisor_worker.contract.wire import read_batch_log, read_beat, read_message, write_message

_LOG_TAIL_BYTES = 64 << 10
_LOG_LIMIT_BYTES = 16 << 20
_SEARCHED = 100  # the newest failed attempts that `failed_as` reads, at most
_MAX_LISTED = 1000  # with more bad rows than this, single texts are not the cause
_PAIR_BYTES = 8  # a pair in the file `AttemptFiles.cut`: position and number of tokens, int32


def write_attempt(
    files: AttemptFiles, draft: Spec, texts: Iterable[str], canary: str | None = None
) -> Spec:
    """Write the texts, and the canary after them, then the spec, into a new folder.

    Returns the draft with what it lacked: `stop`, the digest of the texts, and whether there is a
    canary. Nothing is synced: an attempt that a power cut destroys is made again. The texts are
    written in place, since no worker reads them before the spec is there. Raises OSError.
    """
    digest = hashlib.sha256()
    canaries = [] if canary is None else [canary]
    count = -len(canaries)
    with open(files.texts, "wb") as file:
        for text in itertools.chain(texts, canaries):
            line = json.dumps(text, ensure_ascii=True).encode() + b"\n"
            digest.update(line)
            file.write(line)
            count += 1
    stop = draft.start + count + len(draft.skip)
    spec = replace(draft, stop=stop, texts_digest=digest.hexdigest(), canary=bool(canaries))
    write_message(files.spec, spec)
    return spec


@frozen
class Salvage:
    """What is left of an attempt without a result.

    Positions count from the first text of its spec: with `start` 100, position 3 is text 103.
    """

    done: tuple[int, ...] = ()
    """Texts whose vectors are in its partial file, verified."""
    under_way: tuple[int, ...] = ()
    """Texts of the batches that had begun and were not written: one of them may have ended it."""


@frozen
class AttemptFolder:
    """The folder of an attempt that runs, or has ended."""

    files: AttemptFiles
    spec: Spec
    _known: Callable[[], Facts | None]
    """Returns what is known of the model from vectors stored before, if there are any."""
    _is_blank: Callable[[int], bool]
    """Says whether a text of the output, by its number, has nothing but white space.

    Only the vectors of such texts may be zero throughout.
    """

    def beat(self) -> Beat | None:
        """Read the worker's sign of life; keep its log from growing without end."""
        trim_log(self.files.log)
        return read_beat(self.files.beat)

    def add_log_line(self, line: str) -> None:
        """Add a line to the worker's log."""
        with suppress(OSError), open(self.files.log, "a", encoding="utf-8") as log:
            log.write(f"{line}\n")

    def evidence_of_end(self, end: Evidence) -> Evidence:
        """Return the evidence with all that the folder shows of the attempt.

        Raises nothing: that a file cannot be read is evidence as well.
        """
        files = self.files
        _mask_log(files.log)
        result = read_message(Result, files.result)
        asked = "fingerprint", "output", "chunk", "start", "stop"
        if result and any(getattr(result, key) != getattr(self.spec, key) for key in asked):
            result = None
        beat = read_beat(files.beat)
        if files.folder.exists() and not os.path.lexists(files.beat):
            beat = Beat(0, 0, Phase.START)  # the worker died before its first line
        evidence = replace(
            end,
            result=result,
            fault=read_message(Fault, files.fault),
            beat=beat,
            log_tail=read_tail(files.log),
            disk_free_bytes=least_free_bytes(files.folder),
            on_cpu=self.spec.device == "cpu",
        )
        return self._with_vectors(evidence, result) if result else evidence

    def _with_vectors(self, evidence: Evidence, result: Result) -> Evidence:
        """Return the evidence with what is wrong with the vectors of the result."""
        from chunkvisor.store.artifact import BadVectorsError, inspect

        try:
            found = inspect(self.files.vectors, skip=frozenset(self.spec.skip))
        except BadVectorsError as error:
            return replace(evidence, vectors_problem=str(error))
        except OSError as error:
            return replace(evidence, vectors_problem=f"cannot be read: {error.strerror}")
        known = self._known()
        facts = result.facts
        dimension = found.shape.dimension
        rows = found.shape.rows
        problem = ""
        other_dimension = False
        bad: list[int] = []
        if found.digest != result.digest:
            problem = "differ from the ones recorded in result.json (another digest)"
        elif rows != result.stop - result.start:
            problem = f"are {rows} for {result.stop - result.start} texts"
        elif dimension != facts.dimension:
            problem = f"have dimension {dimension}, the result says {facts.dimension}"
        elif known and dimension != known.dimension:
            problem = f"have dimension {dimension}, the chunks before have {known.dimension}"
            other_dimension = True
        elif known and facts.dtype != known.dtype:
            problem = f"come from weights in {facts.dtype}, the chunks before from {known.dtype}"
        else:
            not_finite = found.not_finite.tolist()
            start = self.spec.start
            zero = [row for row in found.zero.tolist() if not self._is_blank(start + row)]
            bad = sorted(not_finite + zero)
            if bad:
                worst = not_finite or zero
                problem = "have NaN or infinity" if not_finite else "are zero throughout"
                tried = rows - len(self.spec.skip)
                if len(worst) < tried:
                    problem += f" in {len(worst):,} of {tried:,} texts"
        few = tuple(bad) if len(bad) <= _MAX_LISTED else ()
        return replace(
            evidence, vectors_problem=problem or None, other_dimension=other_dimension, bad_rows=few
        )

    def salvage(self) -> Salvage:
        """Find the good vectors of an attempt without a result. Raises nothing."""
        import numpy as np
        import xxhash

        from chunkvisor.store.artifact import BadVectorsError, bad_rows, pick_rows, read_shape

        record = read_batch_log(self.files.batches)
        rows = self.spec.stop - self.spec.start
        wanted = set(range(rows)).difference(self.spec.skip)
        nothing = Salvage(under_way=tuple(sorted(wanted.intersection(record.under_way))))
        facts = record.facts
        known = self._known() or facts
        if not facts or not known:
            return nothing
        if (known.dimension, known.dtype) != (facts.dimension, facts.dtype):
            return nothing
        done: set[int] = set()
        try:
            with open(self.files.partial, "rb") as file:
                shape = read_shape(file)
            if (shape.rows, shape.dimension) != (rows, facts.dimension):
                return nothing
            for batch, digest in record.written:
                if not wanted.issuperset(batch):
                    continue
                at = np.array(batch)
                block = pick_rows(
                    self.files.partial, "<f4", shape.offset_bytes, shape.dimension, at
                )
                if xxhash.xxh3_64_hexdigest(block.data) == digest:
                    not_finite, zero = (at[found].tolist() for found in bad_rows(block))
                    zero = [row for row in zero if not self._is_blank(self.spec.start + row)]
                    done.update(set(batch).difference(not_finite, zero))
        except (BadVectorsError, OSError, ValueError):
            return nothing
        return replace(nothing, done=tuple(sorted(done)))

    def canary_passed(self) -> bool:
        """Say whether its canary got a vector of the dimension of those stored before.

        A vector of another dimension shows that another model was loaded.
        """
        canary = read_batch_log(self.files.batches).canary
        known = self._known()
        return canary is not None and (not known or known.dimension == canary.dimension)

    def result(self) -> Result | None:
        """Read what the worker says of its vectors; None if there is nothing that can be read."""
        return read_message(Result, self.files.result)

    def facts_of_batches(self) -> Facts | None:
        """Read what the worker found out about the model, from its batch log."""
        return read_batch_log(self.files.batches).facts

    def keep_cut_lengths(self, path: Path, texts: int) -> None:
        """Copy the lengths of its texts that were cut into the output's file of them, `path`.

        That file has an int32 for each of the output's `texts` texts: its tokens before the cut, 0
        if it was not cut. The attempt's file has pairs of a text's position and its tokens; pairs
        that cannot be right are left out. Raises OSError.
        """
        import numpy as np

        from chunkvisor.store.artifact import read_exactly

        start = self.spec.start
        count = self.spec.stop - start
        try:
            with open(self.files.cut, "rb") as file:
                data = file.read(_PAIR_BYTES * 2 * count)  # a canary is tokenized twice
        except FileNotFoundError:
            return
        whole = data[: len(data) // _PAIR_BYTES * _PAIR_BYTES]
        pairs = np.frombuffer(whole, dtype="<i4").reshape(-1, 2)
        pairs = pairs[(pairs[:, 0] >= 0) & (pairs[:, 0] < count) & (pairs[:, 1] > 0)]
        if len(pairs):
            tokens = np.zeros(count, dtype="<i4")
            with open(os.open(path, os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as out:
                os.ftruncate(out.fileno(), 4 * texts)
                # Not mapped into memory: on a full disk, a write into a hole of a mapped file kills
                # the process.
                read_exactly(out.fileno(), tokens.view(np.uint8).data, 4 * start)
                tokens[pairs[:, 0]] = pairs[:, 1]
                os.pwrite(out.fileno(), tokens.data, 4 * start)
                os.fsync(out.fileno())
            sync(path.parent)

    def record_verdict(self, verdict: Verdict) -> None:
        """Leave the verdict for people to read; remove an attempt that the run itself ended."""
        if verdict.asked_for:
            self.remove()
            return
        with suppress(OSError):  # on a full disk the journal may still have it
            write_message(self.files.verdict, verdict)

    def forget_verdict(self) -> None:
        """Have the next run judge it again, and store the vectors that are still in it."""
        with suppress(OSError):
            self.files.verdict.unlink(missing_ok=True)

    def drop_bulk(self) -> None:
        """Remove the vectors of a failed attempt; its record, log and texts stay to be read."""
        if not self.files.verdict.exists():
            return
        with suppress(OSError):
            for path in (self.files.vectors, self.files.partial):
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove it whole; the folder of the chunk stays if there are others, with their logs."""
        remove_folder(self.files.folder)
        with suppress(OSError):
            self.files.folder.parent.rmdir()

    def find_log(self) -> Path | None:
        """Find its log, or the newest of the chunk."""
        return find_log(self.files)


def verdict_of_child(returncode: int, fault: Path, log: Path) -> Verdict:
    """Judge a child that has left no result; without one, exit code 0 counts as 1."""
    return judge(
        Evidence(returncode or 1, fault=read_message(Fault, fault), log_tail=read_tail(log))
    )


def find_log(files: AttemptFiles) -> Path | None:
    """Find the attempt's log; if it has none, the newest of the other attempts at its chunk.

    For the folder of all attempts at a chunk, finds the newest of their logs.
    """
    if files.log.is_file():
        return files.log
    pattern = f"*/{files.log.name}"
    logs = itertools.chain(files.folder.glob(pattern), files.folder.parent.glob(pattern))
    return max(logs, key=_mtime_ns, default=None)


def failed_as(attempts: Path, outcome: str, reason: str) -> tuple[str, Path | None]:
    """Return (rule, log) of an output's newest attempt with that outcome and reason.

    If there is none, ("", the newest of all logs). `attempts` is the folder of all its attempts.
    """
    pattern = f"*/*/{AttemptFiles(attempts).log.name}"
    logs = sorted(attempts.glob(pattern), key=_mtime_ns, reverse=True)
    for log in logs[:_SEARCHED]:
        verdict = read_json(AttemptFiles(log.parent).verdict)
        if (verdict.get("outcome"), verdict.get("reason")) == (outcome, reason):
            return str(verdict.get("rule", "")), log
    return "", next(iter(logs), None)


def _mtime_ns(path: Path) -> int:
    with suppress(OSError):  # the file may vanish
        return path.stat().st_mtime_ns
    return 0


def last_line(text: str) -> str:
    """Return the last line of a log that is not blank; empty if there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def trim_log(path: Path) -> None:
    """Empty a log that has grown too large: a chatty library must not fill the disk overnight."""
    with suppress(OSError):
        if path.stat().st_size > _LOG_LIMIT_BYTES:
            os.truncate(path, 0)


def _mask_log(path: Path) -> None:
    """Take secrets out of a log, into which others than Python may have written as well."""
    with suppress(OSError):
        text = path.read_text(errors="surrogateescape")
        if masked(text) != text:
            path.write_text(masked(text), errors="surrogateescape")


def read_tail(path: Path) -> str:
    """Return the last 64 KiB of a log, as text; empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
            return masked(file.read(_LOG_TAIL_BYTES).decode(errors="replace"))
    except OSError:
        return ""
