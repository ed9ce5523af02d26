"""Takes over what workers leave: whole chunks, parts of chunks, verdicts on single texts.

It judges nothing: what comes here is verified, or is to be noted because the scheduler says so. A chunk is committed as
soon as each of its texts has a vector or a verdict.
"""

import contextlib
import errno
import time
from collections.abc import Sequence
from pathlib import Path

from chunkvisor.assemble.numbers import Numbers
from chunkvisor.events.event import (
    Alarmed,
    BatchesKept,
    ChunkCommitted,
    Emit,
    PartCommitted,
    Quarantined,
    Warned,
)
from chunkvisor.heart.messages import Event, Lost, Stored
from chunkvisor.heart.output import OutputRun
from chunkvisor.heart.work import Work
from chunkvisor.judge import Verdict
from chunkvisor.store.artifact import BadVectorsError, inspect
from chunkvisor.store.attempt import take_cut
from chunkvisor.store.disk import DISK_ERRNOS, check_disk, free_bytes, need_bytes, with_room
from chunkvisor.store.identity import BadText
from chunkvisor.store.records import DamagedError
from chunkvisor.units import human_bytes, which_rows
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles, remove_folder
from chunkvisor_worker.contract.messages import Facts, Result, Spec
from chunkvisor_worker.contract.wire import read_batch_log, read_beat, read_message


class Keeper:
    """What is done of all outputs, on its way to the disk."""

    def __init__(self, outputs: Sequence[OutputRun], emit: Emit) -> None:
        self._outputs, self._emit = outputs, emit
        self.first_go_s: float | None = None
        """When the first gate was opened: rates count from then."""
        self._said = set[tuple[str, str]]()
        """(output, warning): each is reported once."""

    def keep(self, work: Work, spec: Spec, files: AttemptFiles, failed: Verdict | None) -> list[Event]:
        """Take over verified vectors of these texts, as a chunk or as a part of one.

        `failed` is the verdict on an attempt that left no result, but finished batches. Raises OSError for what has
        nothing to do with the disk; Halt: 74 if the rest of the output cannot fit, 78 if the model's folder has
        changed.
        """
        output = self._outputs[work.output]
        # What workers have loaded since the folder changed is not known: none of it may become part of the output.
        output.check_model()
        ledger, (start, stop) = output.ledger, output.bounds(work.chunk)
        whole = failed is None and len(work.texts) == stop - start
        result = read_message(Result, files.result) if failed is None else None
        try:
            facts = result.facts if result is not None else read_batch_log(files.batches).facts if failed else None
            if facts is None:
                raise OSError(errno.EIO, f"{files.batches if failed else files.result} cannot be read any more")
            self._warn(output, facts)
            vectors, digest = (files.vectors, result.digest) if result else (files.partial, _digest_of(files.partial))
            # Before the vectors: once these are committed, no one asks again how many tokens were cut.
            take_cut(
                ledger.layout.cut_texts(ledger.fingerprint), ledger.plan.distinct, files.cut, spec.start, spec.stop
            )
            if whole:
                ledger.commit(work.chunk, vectors, digest, facts)
            else:
                ledger.fix_facts(facts)
                # A part names its holes, so that the file can be taken over as it is, without a copy.
                without = set(range(spec.start, spec.stop)).difference(work.texts)
                ledger.parts(work.chunk).add(spec.start, spec.stop, vectors, digest, tuple(sorted(without)))
        except OSError as error:
            return [self._not_stored(work, error)]
        complete = result is not None and len(work.texts) == spec.stop - spec.start - len(spec.skip)
        # Everything it left is in the output now. What failed stays, for a person to read.
        if complete:
            remove_folder(files.folder)
            with contextlib.suppress(OSError):  # the folders of failed attempts stay, with their logs
                files.folder.parent.rmdir()
        if whole:
            self._committed(output, work.chunk, result)
            return [Stored(work)]
        if failed is not None:
            self._emit(_kept(output.name, work, files, interrupted=failed.blameless))
        elif result is not None and complete:
            counts = {"texts": len(work.texts), "tokens": result.tokens, "padded_tokens": result.padded_tokens}
            self._emit(PartCommitted(output.name, work.chunk, spec.start, spec.stop, **counts, phase_s=result.phase_s))
        return [Stored(work), *self.compose(work.output, work.chunk)]

    def _warn(self, output: OutputRun, facts: Facts) -> None:
        """Report, once each, what the libraries warned of, and libraries of other versions than at the beginning."""
        for text in facts.loaded.notes if facts.loaded is not None else ():
            self._say_once("", text, Warned(f"while the model was loaded: {text}"))
        if changed := ", ".join(output.ledger.note_versions(facts)):
            words = f"some rows were computed with other library versions: {changed}; the manifest names all"
            self._say_once(output.name, changed, Warned(f"{output.name}: {words}"))

    def _say_once(self, output: str, text: str, event: Warned) -> None:
        if (output, text) not in self._said:
            self._said.add((output, text))
            self._emit(event)

    def quarantine(self, work: Work, verdict: Verdict) -> list[Event]:
        """Note a text that fails alone. Raises OSError as `keep`."""
        output, text = self._outputs[work.output], work.texts[0]
        try:
            output.ledger.parts(work.chunk).add_bad(BadText(text, verdict.outcome, verdict.reason))
        except OSError as error:
            return [self._not_stored(work, error)]
        row, place = self.place_of(work)
        rows = output.rows_of(text)
        self._emit(Quarantined(output.name, row, place, verdict.outcome, verdict.reason, work.chunk, rows))
        return [Stored(work), *self.compose(work.output, work.chunk)]

    def compose(self, number: int, chunk: int) -> list[Event]:
        """Commit a chunk from its parts if each of its texts has a vector or a verdict.

        While no vector is known, neither is the dimension; and a full disk is tried again: the joins do both later.
        Raises OSError as `keep`.
        """
        output = self._outputs[number]
        ledger = output.ledger
        if ledger.facts is None or ledger.committed(chunk) or output.missing(chunk):
            return []
        parts = ledger.parts(chunk)
        try:
            composed, digest = parts.compose(ledger.facts.dimension)
            ledger.commit(chunk, composed, digest, ledger.facts)
        except OSError as error:
            if parts.missing():
                self._emit(Warned(f"{output.name} chunk {chunk} is damaged and will be computed again: {error}"))
                return [Lost(number, chunk)]
            if error.errno not in DISK_ERRNOS:
                raise
            return []
        self._committed(output, chunk, None)
        return []

    def place_of(self, work: Work) -> tuple[int, str]:
        """Name the first row of the first text, and its place in the source."""
        table, text = self._outputs[work.output].table, work.texts[0]
        row = int(table.first_row(text, text + 1)[0])
        return row, table.place_of(row)

    def which_rows(self, work: Work, texts: Sequence[int]) -> str:
        """Name the first rows of these texts; empty if that cannot be read."""
        if not texts:
            return ""
        start, stop = min(texts), max(texts) + 1
        try:
            first = self._outputs[work.output].table.first_row(start, stop)
        except (DamagedError, OSError):  # the next worker's texts are read from the same table, and its halt says so
            return ""
        return which_rows(sorted(int(first[text - start]) for text in texts))

    def with_need(self, why: str) -> str:
        """Say why a run ends on a full disk, and how much its outputs still need, as far as that is known."""
        needs = [need for output in self._outputs if output.left and (need := _still_needed(output)) is not None]
        return f"{why}; what is left to do needs up to {human_bytes(sum(needs))}" if needs else why

    def _not_stored(self, work: Work, error: OSError) -> Stored:
        if error.errno not in DISK_ERRNOS:
            raise error
        output = self._outputs[work.output]
        if error.errno == errno.EIO:
            words = (
                f"{output.name} chunk {work.chunk}: the disk reported an error, and the chunk is stored again: {error}"
            )
            self._emit(Alarmed(words))
        reason = with_room(f"vectors could not be stored: {error}", output.ledger.layout.workdir)
        return Stored(work, Verdict(Outcome.DISK_FULL, reason))

    def _committed(self, output: OutputRun, chunk: int, result: Result | None) -> None:
        # The first chunk tells the dimension, and with it what the rest will need: better refused now than at night.
        output.committed_here += 1
        if output.committed_here == 1 and output.left:
            check_space(output)
        ledger, before = output.ledger, output.saved_before.pop(chunk, 0)
        texts = ledger.plan.size(chunk)
        output.texts_here += texts - before
        rate: float | None = None
        # Start-up is not counted: it comes once, and would make the estimate too long for hours.
        if self.first_go_s is not None:
            rate = sum(each.texts_here for each in self._outputs) / max(1e-6, time.monotonic() - self.first_go_s)
        # Of all outputs, because they share the devices.
        left = sum(each.ledger.plan.distinct - each.ledger.texts_done for each in self._outputs)
        committed = ChunkCommitted(
            output.name,
            chunk,
            texts,
            ledger.texts_done + output.taken,
            ledger.chunks_done,
            ledger.plan.count,
            attempt_ok=result is not None,
            texts_per_s=rate and round(rate, 3),
            eta_s=round(left / rate, 1) if rate else None,
            tokens=result.tokens if result else 0,
            padded_tokens=result.padded_tokens if result else 0,
            phase_s=result.phase_s if result else {},
            texts_before=before,
        )
        self._emit(committed)


def check_space(output: OutputRun) -> None:
    """Raise Halt (74) if the rest of the output cannot fit on the disk; needs the facts of a committed chunk."""
    if (need := _still_needed(output)) is not None:
        workdir = output.ledger.layout.workdir
        check_disk(output.name, need, free_bytes(workdir), str(workdir))


def _still_needed(output: OutputRun) -> int | None:
    """Count the bytes of the rest of the output, at most; None until a chunk is committed."""
    ledger = output.ledger
    if ledger.facts is None:
        return None
    left, dimension = ledger.plan.distinct - ledger.texts_done, ledger.facts.dimension
    second_form = 0 if output.form.is_of_rows else Numbers(output.form.dtype, dimension).row_bytes
    return need_bytes(output.table.rows, left, dimension, second_form)


def _kept(output: str, work: Work, files: AttemptFiles, *, interrupted: bool) -> BatchesKept:
    """Report texts of an attempt that left no result; its last beat knows their tokens, about."""
    beat, texts = read_beat(files.beat), len(work.texts)
    if beat is None or not beat.rows_done:
        return BatchesKept(output, work.chunk, texts, interrupted=interrupted)
    share = min(1.0, texts / beat.rows_done)
    tokens, padded = round(beat.tokens_done * share), round(beat.padded_tokens * share)
    return BatchesKept(output, work.chunk, texts, tokens, padded, interrupted)


def _digest_of(vectors: Path) -> str:
    """Compute the checksum of the file. Raises OSError."""
    try:
        return inspect(vectors).digest
    except BadVectorsError as error:
        raise OSError(errno.EIO, f"{vectors} {error}") from error
