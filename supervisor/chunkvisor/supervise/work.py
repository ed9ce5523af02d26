"""The work of one run: opens its outputs, runs the loop over them, and combines what is finished.

To open an output is to stage its source, compare its identity, settle which texts are encoded, and read what is done.
Each generation of an output is prepared next to what is there, takes over what vectors it can, and takes its place.
What an earlier run has fixed stays, unless the run is to update it or to begin from scratch; the final file stays until
the new one is there.
"""

import os
import tempfile
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from chunkvisor.config.model import Config, OutputConfig, encode_spec, resolve_limits
from chunkvisor.devices.gpu import unfit_dtype, weakest
from chunkvisor.engine.modelfolder import check_model_files, read_model_folder
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.engine.process import thread_count
from chunkvisor.engine.trial import Expected, read_expected, try_texts
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.events.event import (
    ChunkCommitted,
    Note,
    OutputAlreadyComplete,
    OutputOpened,
    Staging,
    Warned,
    WorkPlanned,
)
from chunkvisor.events.journal import read_with_trials
from chunkvisor.heart.loop import Loop
from chunkvisor.heart.output import OutputRun, texts_damaged
from chunkvisor.heart.run import Run, stopped
from chunkvisor.heart.store import ResultStore
from chunkvisor.outputs.combine import combine, refuse_unequal
from chunkvisor.outputs.finish import finish
from chunkvisor.outputs.forms import asked_form, clear_partial
from chunkvisor.outputs.publish import (
    finish_publishing,
    keep_finished,
    lacks_rows_table,
    read_finished,
)
from chunkvisor.outputs.reuse import Donor, of_chunks, of_final, of_other_workdirs, plan_reuse
from chunkvisor.sources.child import request_of, stage_table
from chunkvisor.sources.resolve import IngestRequest, resolve, signature
from chunkvisor.sources.table import StagedTable, rows_of
from chunkvisor.store.disk import not_ours
from chunkvisor.store.identity import (
    Fixed,
    Identity,
    arithmetic_variables,
    differences,
    identity_of,
    make_state,
    read_fixed,
    write_facts,
)
from chunkvisor.store.layout import Layout, OutputLayout, unfinished
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.records import DamagedError, LessonFile, digest_of, write_record
from chunkvisor.store.reuse import is_planned, read_reuse, work_with
from chunkvisor.supervise.session import Means, Request
from chunkvisor.units import counted, listed
from chunkvisor.words import gave_up, with_bad_rows
from chunkvisor_worker.contract.files import make_folder, remove_folder, sync_folder
from chunkvisor_worker.contract.messages import Phase, Spec

_TARGET_S = 40.0  # a chunk takes a worker about this long: a fault costs little, and a worker's start little of it


def work(request: Request, run: Run, means: Means, source: ModelSource) -> None:
    """Do what a run does between its first word and its last. Raises Halt if it does not end well; OSError."""
    config = request.loaded.config
    if source.path is not None:
        folder = read_model_folder(Path(source.path))
        dtype, kind = folder.computes_in(config.model), folder.model_type
        if (unfit := unfit_dtype(dtype, kind, weakest(means.devices))) is not None:
            run.emit(Warned("; ".join(unfit)))
    # What is wrong with it is said before the source is read.
    expected = read_expected(config.model.expect) if config.model.expect is not None else None
    outputs = Opening(request, run, means, source).open()
    if outputs:
        for what, mend in check_model_files(config, source.path):
            run.emit(Warned(f"{what}; {mend}"))
        ledgers = [output.ledger for output in outputs]
        texts = sum(each.plan.distinct for each in ledgers)
        planned = WorkPlanned(
            rows=sum(output.rows for output in outputs),
            texts=texts,
            texts_left=texts - sum(each.texts_done for each in ledgers),
            chunks=sum(each.plan.count for each in ledgers),
            chunks_left=sum(output.left for output in outputs),
            texts_per_s=run.texts_per_s_before,
            taken=sum(output.taken for output in outputs),
        )
        run.emit(planned)
        if expected is not None and any(output.left for output in outputs):
            _expect(expected, request, run, means, source)
    model = config.model
    lessons = LessonFile(
        run.layout.lessons, f"{source.revision or model.name}|{model.dtype}|{model.encoder}"
    )
    with closing(means.take_engine(source)) as engine:
        store = ResultStore(outputs, run, config.recovery.wait_timeout)
        given_up = Loop(outputs, config, lessons, engine, store, run).run()
    if run.signals.first is not None or (
        run.signals.draining and not all(each.joined for each in outputs)
    ):
        raise stopped(run.signals)
    if given_up:
        raise gave_up(given_up)
    _complete(config, run, means)


def _complete(config: Config, run: Run, means: Means) -> None:
    """Make the combinations, and end with success only if every final file and manifest stands.

    Raises Halt: 3 if some rows have no vector, 75 if a file is not there; OSError.
    """
    finished = {name: _finished(run.layout.output(name)) for name in config.outputs}
    for name, members in config.combine.items():
        place = run.layout.combined(name)
        manifests = {member: finished[member] for member in members}
        manifest, was_there = combine(place, manifests, means.on_wait)
        _finished(place)
        if not was_there:
            size = f"{manifest['rows']:,} x {manifest['dimension']:,}"
            words = f"{name}: {size}, {' and '.join(members)} next to each other: {place.final}"
            run.emit(Note(words))
    quarantined = {name: each for name, each in finished.items() if each["quarantined"]}
    if quarantined:
        raise with_bad_rows(run.layout, quarantined)


def _finished(layout: OutputLayout) -> dict[str, Any]:
    """Return the manifest of an output or a combination. Raises Halt (75) if its files are not there; OSError."""
    manifest = read_finished(layout)
    if manifest is None:
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"{layout.name} has no final file, or not the one that was made: {layout.final}",
            why="it was changed or removed while the run ended, or the run did not make it",
            remedy="Run the same command again: what has a vector is not encoded again.",
        )
    return manifest


def _expect(
    expected: Expected, request: Request, run: Run, means: Means, source: ModelSource
) -> None:
    """Have the first worker of the run encode the texts of `model.expect`. Raises Halt, OSError."""
    config = request.loaded.config
    model = source.spec(config.model)
    with tempfile.TemporaryDirectory(prefix="chunkvisor-expect-") as folder:
        encode, device = encode_spec(config.encode), means.devices[0]
        trial = try_texts(
            expected.texts, model, encode, device, request.loaded, Path(folder), means.on_wait
        )
    if trial.vectors is None:
        raise trial.failure("the texts of model.expect could not be encoded")
    if (refusal := expected.refusal(trial.vectors, trial.dtype, model)) is not None:
        raise refusal
    run.emit(
        Note(
            f"the model gives the vectors of {counted(len(expected.texts), 'text')} in {expected.path}"
        )
    )


@dataclass(slots=True)
class Prepared:
    """One output whose source is staged."""

    layout: OutputLayout
    fixed: Fixed  # of the next generation, if there is to be one
    manifest: dict[str, Any] | None = None  # of a complete one, of which there is nothing to do
    # The next generation is prepared in `layout.next`, but for the plan; its table is there only if it is another.
    moves_on: bool = False


class Opening:
    """Opens the outputs of one run."""

    def __init__(self, request: Request, run: Run, means: Means, source: ModelSource) -> None:
        self._request, self._run, self._means, self._source = request, run, means, source
        self._config: Config = request.loaded.config
        # The environment of this machine does not travel to the nodes of a cluster.
        self._arithmetic = arithmetic_variables(
            {} if means.on_ray else os.environ, self._config.env
        )
        self._all: list[Prepared] = []  # in the order in which they are encoded

    @cached_property
    def _pace(self) -> tuple[float | None, float]:
        return pace_before(self._config)  # a journal is read once for all outputs

    def open(self) -> list[OutputRun]:
        """Open all outputs, and return those that are not complete, in the order in which they are encoded.

        Raises Halt if a source is wrong, or the config differs from what the workdir was begun with; OSError.
        """
        config, layouts = (
            self._config,
            [self._run.layout.output(name) for name in self._config.outputs],
        )
        for layout in layouts:
            if is_planned(
                layout.next
            ):  # a run was killed that was about to begin the next generation
                _switch(layout)
            remove_folder(layout.next.state)
            finish_publishing(layout)
            if not _begun(layout):
                final = layout.file(config.outputs[layout.name].format)
                for place in (final, layout.manifest):
                    if os.path.lexists(place):
                        raise not_ours(
                            place, "choose another workdir or another name for the output"
                        )
        self._all = [self._prepare(layout) for layout in layouts]
        refuse_unequal(
            config.combine, {each.layout.name: each.fixed.identity.rows for each in self._all}
        )
        outputs = list[OutputRun]()
        for each in self._all:
            layout, manifest = each.layout, each.manifest
            if manifest is None:
                try:
                    self._settle(each)
                    outputs.append(self._open(each))
                except DamagedError as error:
                    raise texts_damaged(error) from error
                continue
            remove_folder(layout.before)
            clear_partial(
                layout
            )  # of a join that was tried again after its final stood, in vain: the disk failed
            if not config.chunk.keep and layout.chunks.exists() and not manifest["quarantined"]:
                remove_folder(layout.chunks)
            path = str(layout.file(config.outputs[layout.name].format))
            self._run.emit(
                OutputAlreadyComplete(layout.name, manifest["rows"], manifest["dimension"], path)
            )
        return outputs

    # --- the source, and what an earlier run has fixed

    def _prepare(self, layout: OutputLayout) -> Prepared:
        """Stage the source of one output, and find its final files if they are complete."""
        name, anew, fresh = layout.name, self._request.from_scratch and _begun(layout), None
        before = None
        with suppress(DamagedError):
            before = read_fixed(layout)
        lost = before is None and any(
            path.exists() for path in (layout.identity, layout.chunks, layout.done)
        )
        if lost and not self._request.from_scratch:
            raise config_error(
                f"{layout.identity} is missing or damaged; it says what the files next to it belong to",
                remedy="Restore the file, or add --from-scratch to discard what is done.",
            )
        make_state(layout)
        # Of a run that was killed while it staged: nothing rests on them yet.
        for leftover in (layout.fresh_table, unfinished(layout.fresh_table)):
            remove_folder(leftover)
        request, was_done = (
            request_of(self._config, name, self._request.max_rows),
            layout.done.exists(),
        )
        now = None
        if before is not None and not anew:
            was = before.identity
            now = replace(before, identity=self._identity(name, was.source_digest, was.rows))
            if not self._is_staged(layout, request, before):
                # Refuse a changed config before minutes are spent on reading the source anew.
                self._refuse_changed(layout, before, now.identity)
                now = None
        if now is None:
            fresh, now = self._stage(layout, request, before)
        if before is not None and not anew:
            self._refuse_changed(layout, before, now.identity, fresh)
        if anew or before is None or before.identity.fingerprint != now.identity.fingerprint:
            generation = before.generation + 1 if before is not None else 1
            size = self._config.effective_chunk_size(name)
            if size == "auto":
                devices, per_device = self._means.devices, self._config.workers.per_device
                size, why = propose(*self._pace, len(devices) * per_device, devices[0].kind)
                self._note(f"{name}: chunks of {size:,} texts, {why}")
            made = Prepared(layout, replace(now, chunk_size=size, generation=generation))
            if _begun(layout):
                self._note(
                    f"{name}: this is generation {generation}, of {counted(now.identity.rows, 'row')}"
                )
            self._move_on(made, fresh)
            return made
        if fresh is not None:
            remove_folder(layout.table)
            fresh.rename(layout.table)
            write_record(layout.identity, now)
        made = Prepared(layout, now)
        form = asked_form(self._config.outputs[name], now.carried)
        made.manifest = keep_finished(
            layout, now.identity.fingerprint, form, self._run.emit, self._means.on_wait
        )
        if made.manifest is None and was_done:
            return self._prepare(
                layout
            )  # `clean` may have removed the texts, which are needed again
        if (
            made.manifest is not None and layout.again.exists()
        ):  # `retry` has asked for the bad texts
            if made.manifest["quarantined"]:
                self._move_on(made)
            else:
                layout.again.unlink()
        return made

    def _is_staged(self, layout: OutputLayout, request: IngestRequest, before: Fixed) -> bool:
        """Say whether what an earlier run has staged is still the same, and what is needed of it is there."""
        output = self._config.outputs[layout.name]
        if before.asked != _asked(request) or lacks_rows_table(
            layout, asked_form(output, before.carried)
        ):
            return False
        if layout.done.exists() and not layout.again.exists():
            return True
        with suppress(DamagedError):
            if StagedTable.open(layout.table).digest == before.identity.source_digest:
                return True
        self._note(f"{layout.name}: the staged texts are damaged; reading the source again")
        return False

    def _stage(
        self, layout: OutputLayout, request: IngestRequest, before: Fixed | None
    ) -> tuple[Path, Fixed]:
        """Read the source; returns the folder of the table, next to the one that is there, and its record."""
        name, fresh, means = layout.name, layout.fresh_table, self._means
        means.load_ahead(self._source)
        self._run.emit(Staging(name))
        asked = _asked(request)
        table = stage_table(request, fresh, means.on_wait)
        if table.empty:
            empty = f"{counted(table.empty, 'row')} of empty text, with one vector for all"
            self._note(f"{name}: {empty}; `where` leaves them out")
        files = tuple(file.place for file in table.files)
        identity = self._identity(name, table.digest, table.rows)
        size, generation = (before.chunk_size, before.generation) if before is not None else (0, 1)
        return fresh, Fixed(identity, size, asked, table.distinct, files, table.carried, generation)

    def _identity(self, name: str, digest: str, rows: int) -> Identity:
        """Compute the identity that the config asks for, of a source of so many rows."""
        source = self._source
        return identity_of(
            *(self._config, name, source.revision or "", digest, rows, self._arithmetic),
            source.revisions,
        )

    def _refuse_changed(
        self, layout: OutputLayout, fixed: Fixed, now: Identity, fresh: Path | None = None
    ) -> None:
        """Raise Halt (78) if the identity is another one; with --update, if vectors that are there do not serve."""
        serve = now.of_vectors == fixed.identity.of_vectors
        if fixed.identity.fingerprint == now.fingerprint or (serve and self._request.update):
            return
        if fresh is not None:
            remove_folder(fresh)
        changes, by_options = differences(fixed.identity, now), self._request.loaded.by_options
        what = f"output {layout.name} was begun with other settings"
        if all(change.startswith("source: ") for change in changes):
            what = f"the source of output {layout.name} has changed"
        elsewhere = "name another file by -o" if by_options else "choose another workdir"
        remedy = (
            f"undo the change, or {elsewhere}, or discard what is done by adding --from-scratch."
        )
        if serve and not by_options:
            remedy = f"add --update, which encodes only texts that have no vector yet, or {remedy}"
        raise config_error(
            "\n  ".join([f"{what}:", *changes]),
            why="Vectors of both would be mixed in one file. Nothing has been touched.",
            remedy=remedy[0].upper() + remedy[1:],
        )

    def _move_on(self, made: Prepared, fresh: Path | None = None) -> None:
        """Prepare the next generation, of other texts, or the same if there are no fresh ones; all is planned anew."""
        prepared = made.layout.next
        remove_folder(prepared.state)
        make_folder(prepared.state, durable=False)
        if fresh is not None:
            fresh.rename(prepared.table)
        write_record(
            prepared.identity, made.fixed
        )  # last: with it the name of the table is on the disk
        made.moves_on, made.manifest = True, None

    # --- which texts are encoded

    def _settle(self, each: Prepared) -> None:
        """Plan which texts are encoded, unless the plan of an earlier run still holds.

        A new plan over committed chunks is a next generation, which takes over their vectors like others.
        """
        layout = each.layout
        if not each.moves_on:
            problem = self._problem_of_plan(each)
            if problem is None:
                return
            self._note(f"{each.layout.name}: {problem}; its texts are looked up again")
            self._move_on(each)
        prepared = layout.next
        table = StagedTable.open(prepared.table if prepared.table.exists() else layout.table)
        make_folder(prepared.chunks, durable=False)
        donors = self._donors(each) if self._config.reuse else []
        on_wait = self._means.on_wait
        facts = plan_reuse(
            each.layout.name, prepared.reuse, table, filter(None, donors), self._run.emit, on_wait
        )
        if facts is not None:
            write_facts(prepared, facts)
        _switch(layout)
        each.moves_on = False

    def _problem_of_plan(self, each: Prepared) -> str | None:
        """Why the plan does not hold any more, in words."""
        try:
            read_reuse(each.layout)
        except DamagedError as error:
            return f"its plan is damaged ({error})"
        if not is_planned(
            each.layout
        ):  # its chunks were removed after it was finished, and its final file is lost
            return "its vectors are gone"
        return None

    def _donors(self, each: Prepared) -> list[Donor | None]:
        """Find what may have vectors, in the order of preference. From scratch, nothing the workdir has from before."""
        layout, wanted, anew = each.layout, each.fixed.identity, self._request.from_scratch
        donors, late = list[Donor | None](), list[Donor | None]()
        if not anew:
            is_done = layout.done.exists()
            own = of_final(layout if is_done else layout.earlier, wanted, "its earlier final file")
            donors.append(own)
            if own is None or not is_done:
                late.append(of_chunks(layout, wanted))
                if is_done and late == [None]:
                    words = (
                        "no vector can be taken from its final file, which is rounded or damaged"
                    )
                    self._note(
                        f"{each.layout.name}: {words}; with chunk.keep: true, updates encode only new texts"
                    )
        finished = [other.layout for other in self._all if other.manifest is not None]
        donors += [of_final(other, wanted, f"output {other.name}") for other in finished]
        if not anew:
            for path in sorted(self._run.layout.outputs.glob("*/")):
                if path.name not in self._config.outputs:
                    donors.append(
                        of_final(self._run.layout.output(path.name), wanted, f"output {path.name}")
                    )
        return [*donors, *late, *of_other_workdirs(self._config.reuse_from, wanted)]

    # --- ready to run

    def _open(self, each: Prepared) -> OutputRun:
        layout, name, fixed = each.layout, each.layout.name, each.fixed
        config, source, device_kind = self._config, self._source, self._means.devices[0].kind
        clear_partial(
            layout
        )  # before space is counted: a killed join leaves its whole size reserved
        table = StagedTable.open(layout.table)
        if config.effective_chunk_size(name) not in ("auto", fixed.chunk_size):
            self._note(
                f"{name}: keeps chunks of {fixed.chunk_size:,} texts, as its first run began"
            )
        reuse = read_reuse(layout)
        ledger = Ledger(layout, *work_with(reuse, fixed))
        ledger.load()
        fresh, taken = table.without(reuse), reuse.taken if reuse is not None else 0
        if not taken:
            ledger.forgive_if_none_is_good()
        if reuse is not None:
            places = listed([place.words for place in reuse.places], 3)
            have = (
                f"{taken:,} of {counted(reuse.texts, 'text')} already have a vector, from {places}"
            )
            self._note(f"{name}: {have}; {reuse.encoded:,} left to encode")
        saved = (
            ledger.saved()
        )  # finds the chunks of which parts are known, and with them their bad texts
        opened = OutputOpened(
            output=name,
            rows=table.rows,
            distinct=ledger.plan.distinct + taken,
            chunks=ledger.plan.count,
            chunk_size=fixed.chunk_size,
            chunks_done=ledger.chunks_done,
            texts_done=ledger.texts_done + taken,
            texts_saved=sum(saved.values()),
            quarantined=sum(rows_of(fresh, [bad.text for bad in ledger.bad_texts()]).values()),
        )
        self._run.emit(opened)
        encode, cores = (
            config.effective_encode(name),
            len(os.sched_getaffinity(0)) // config.workers.per_device,
        )
        threads = config.env.get("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS"))
        # Chunk, attempt, start, stop and digest of the texts are those of each attempt.
        job = Spec(
            *(self._run.run_id, ledger.fingerprint, name, 0, 0, 0, 0, "", device_kind),
            source.spec(config.model),
            encode_spec(encode),
            import_path=(str(self._request.loaded.folder),),
            threads=thread_count(threads, device_kind, cores),
        )
        form = asked_form(config.outputs[name], fixed.carried)
        return OutputRun(
            ledger,
            fresh,
            job,
            resolve_limits(encode, device_kind, plugin=config.model.is_plugin),
            partial(finish, form, fixed, ledger, table, reuse, job, source, config.chunk.keep),
            form,
            source,
            rows=table.rows,
            taken=taken,
            without_blanks=_without_blanks(config.outputs[name]),
        )

    def _note(self, note: str) -> None:
        self._run.emit(Note(note))


def _without_blanks(output: OutputConfig) -> str:
    """Return a condition for `where` that leaves blank texts out; empty if a template makes them or there is one."""
    if output.template is not None or output.where is not None:
        return ""
    text = f"({output.sql})" if output.sql is not None else f'"{output.column}"'
    return f"trim({text}) <> ''"


def _asked(request: IngestRequest) -> dict[str, Any]:
    """Say what the staged table depends on, but for the contents of the files. Raises Halt if a file is gone."""
    values = asdict(replace(request, memory_limit_bytes=0))
    return {"request": digest_of(values), "signature": signature(resolve(request.sources))}


def staged_before(request: IngestRequest, layout: OutputLayout) -> bool:
    """Say whether an earlier run staged the same request and untouched files. Raises Halt if a file is gone."""
    fixed = None
    with suppress(DamagedError):
        fixed = read_fixed(layout)
    return fixed is not None and fixed.asked == _asked(request)


def pace_before(config: Config) -> tuple[float | None, float]:
    """Return the texts a second that the last run here, or trial, has encoded over all devices, and `entry_s`.

    That is how long a worker has its device before it computes: for its CUDA context, and the copy of the weights.
    """
    rate, entry_s = None, 0.0
    for event in (
        entry.event for entry in read_with_trials(config.workdir, Layout(config.workdir).events)
    ):
        if isinstance(event, ChunkCommitted) and event.texts_per_s:
            rate = event.texts_per_s
            entry_s = event.phase_s.get(Phase.CUDA_INIT, 0.0) + event.phase_s.get(
                Phase.WEIGHTS_COPY, 0.0
            )
    return rate, entry_s


def propose(
    texts_per_s: float | None, entry_s: float, workers: int, device_kind: str
) -> tuple[int, str]:
    """Propose how many texts a chunk has, in words why: one significant digit, so 27 to 60 s if the entry is short."""
    if texts_per_s is None:
        size = 3000 if device_kind == "cuda" else 500
        return size, f"usual for {device_kind}; no rate is known here yet"
    rate = texts_per_s / workers
    target_s = max(
        _TARGET_S, 75 * entry_s
    )  # so that the entry takes under 2 %, even if rounded down
    size = min(50_000, max(100, int(float(f"{rate * target_s:.1g}"))))
    return size, f"at {rate:,.3g} texts/s of a worker, {max(1, round(size / rate)):,} s a chunk"


def _begun(layout: OutputLayout) -> bool:
    """Say whether a run has begun the output, so that what stands under its name is ours."""
    return any(os.path.lexists(path) for path in (layout.identity, layout.done, layout.before))


def _switch(layout: OutputLayout) -> None:
    """Begin the next generation, whose state is prepared; final files and manifest stay where they are.

    Each step may be done twice. Raises OSError.
    """
    state, prepared = layout.state, layout.next
    if not prepared.table.exists():
        layout.table.rename(prepared.table)
    if state.exists():
        make_folder(layout.before)  # and with it the name of the prepared state is on the disk
        # A state without a final file is of no use any more: what it had was copied.
        kept = layout.earlier.state if layout.done.exists() else layout.before / "since"
        remove_folder(kept)
        state.rename(kept)  # on the disk, too, before the next one can have its name
    prepared.state.rename(state)
    # Or a power cut would bring the earlier state back once the plan is removed with the chunks of a finished output.
    for folder in (layout.before, layout.hidden, state.parent):
        sync_folder(folder)
    remove_folder(layout.before / "since")
