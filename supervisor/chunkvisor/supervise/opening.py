"""Opens the outputs of one run: stages and plans each, and reads what is done of it."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

from chunkvisor.child import OnWait
from chunkvisor.config.model import Config, OutputConfig, encode_spec, resolve_limits
from chunkvisor.core.output import OutputRun
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.engine.process import thread_count
from chunkvisor.events.event import Event, OutputOpened
from chunkvisor.events.journal import states_with_trials
from chunkvisor.outputs.finish import finish_output
from chunkvisor.outputs.forms import asked_form
from chunkvisor.outputs.join import JoinInputs
from chunkvisor.outputs.open import open_outputs
from chunkvisor.outputs.plan import count_shared, plan
from chunkvisor.outputs.stage import Wanted
from chunkvisor.outputs.state import OutputState, Stage
from chunkvisor.sources.table import StagedTable
from chunkvisor.store.identity import Fixed, Identity, Plan, arithmetic_variables, identity_of
from chunkvisor.store.layout import Layout
from chunkvisor.store.ledger import Ledger
from chunkvisor.store.reuse import Reuse, plan_and_fingerprint, read_reuse
from chunkvisor.supervise.resources import RunResources
from chunkvisor.units import counted, listed
from chunkvisor_worker.contract.messages import Phase, Spec

# About how long a worker is to take for a chunk: a fault then costs little, and the start of the
# worker is a small part of it.
_TARGET_S = 40.0


class Opening:
    """Opens the outputs of one run."""

    def __init__(self, resources: RunResources, source: ModelSource) -> None:
        request = resources.request
        self._resources = resources
        self._run = resources.run
        self._source = source
        self._config: Config = request.loaded.config
        # Workers on the nodes of a cluster do not inherit the environment of this machine.
        environment = {} if resources.on_ray else os.environ
        self._arithmetic = arithmetic_variables(environment, self._config.env)
        self._wanted = Wanted(
            request.loaded,
            request.rows,
            request.from_scratch,
            request.update,
            request.place,
            request.more,
            self._identity,
            self._chunk_size,
            partial(resources.load_ahead, source),
            resources.run.emit,
            resources.on_wait,
        )

    @cached_property
    def _pace(self) -> tuple[float | None, float]:
        return pace_before(self._config)  # the journal is read once for all outputs

    def _identity(self, name: str, digest: str, rows: int) -> Identity:
        source = self._source
        return identity_of(
            self._config,
            name,
            source.revision or "",
            digest,
            rows,
            self._arithmetic,
            source.revisions,
        )

    def _chunk_size(self, name: str) -> int:
        size = self._config.effective_chunk_size(name)
        if size == "auto":
            devices = self._resources.devices
            workers = len(devices) * self._config.workers.per_device
            size, why = propose(*self._pace, workers, devices[0].kind)
            self._wanted.emit_note(f"{name}: chunks of {size:,} texts, {why}")
        return size

    def open_all(self) -> list[OutputRun]:
        """Open all outputs; return those that are not complete, in the order of the config.

        Raises Halt if a source is wrong, or the config is another than that which the workdir was
        begun with; OSError.
        """
        self._layouts = [*map(self._run.layout.output, self._config.outputs)]
        found = open_outputs(self._layouts, self._wanted)
        complete = [each.layout for each in found if each.manifest]
        left = [each for each in found if not each.manifest]
        outputs = list[OutputRun]()
        for number, each in enumerate(left):
            counts = list[int]()
            known = 0
            if each.stage is Stage.STAGED and self._config.reuse:
                counts, known = count_shared(each, left[:number], complete)
            if any(counts):
                outputs.append(self._waiting(each, counts, known, outputs))
            else:
                outputs.append(self._planned(each, self._wanted))
        return outputs

    def _waiting(
        self, found: OutputState, counts: Sequence[int], known: int, before: Sequence[OutputRun]
    ) -> OutputRun:
        """Open an output that takes over vectors which outputs `before` it are still to encode.

        Until they are encoded, what is left of it to encode is a guess. `counts` says how many
        vectors it takes from each of them; `known` is how many texts will then have one at most.
        """
        layout = found.layout
        fixed = found.fixed
        assert fixed
        name = layout.name
        places = [f"{n:,} from {each.name}" for n, each in zip(counts, before, strict=True) if n]
        texts = counted(fixed.distinct, "text")
        have = f"{sum(counts):,} of {texts} will have a vector, {listed(places, 3)}"
        self._wanted.emit_note(f"{name}: {have}")
        ledger = Ledger(layout, Plan(fixed.distinct - known, fixed.chunk_size), "")
        opened = OutputOpened(
            name,
            fixed.identity.rows,
            fixed.distinct,
            ledger.plan.count,
            fixed.chunk_size,
            texts_done=known,
        )
        self._run.emit(opened)
        output = self._output_of(fixed, ledger, StagedTable.open(layout.table))
        output.taken = known
        output.waits_for = frozenset(number for number, count in enumerate(counts) if count)
        output.prepare = partial(self._prepare, found)
        return output

    def _prepare(self, found: OutputState, on_wait: OnWait) -> tuple[OutputRun, list[Event]]:
        told = list[Event]()
        output = self._planned(found, replace(self._wanted, emit=told.append, on_wait=on_wait))
        output.find_known_good()
        return output, told

    def _planned(self, found: OutputState, wanted: Wanted) -> OutputRun:
        plan(found, wanted, self._layouts)
        return self._open(found, wanted)

    def _open(self, found: OutputState, wanted: Wanted) -> OutputRun:
        """Read what is done of an output that is planned."""
        layout = found.layout
        name = layout.name
        fixed = found.fixed
        assert fixed
        asked = self._config.effective_chunk_size(name)
        if asked not in ("auto", fixed.chunk_size):
            began = f"this output began with {fixed.chunk_size:,}"
            wanted.emit_note(f"{name}: chunk.size={asked} is ignored: {began}")
        table = StagedTable.open(layout.table)
        reuse = read_reuse(layout)
        ledger = Ledger(layout, *plan_and_fingerprint(reuse, fixed))
        ledger.load()
        taken = 0
        if reuse:
            taken = reuse.texts_copied
            texts = counted(reuse.texts, "text")
            places = listed([place.words for place in reuse.places], 3)
            have = f"{taken:,} of {texts} already have a vector, from {places}"
            wanted.emit_note(f"{name}: {have}; {reuse.encoded:,} left to encode")
        if not taken:
            ledger.forgive_if_none_is_good()
        # Before `bad_texts`: it reads the parts, which have the bad texts of unfinished chunks.
        saved = ledger.saved()
        bad_rows = table.without(reuse).row_counts([bad.text for bad in ledger.bad_texts()])
        opened = OutputOpened(
            output=name,
            rows=table.rows,
            distinct=ledger.plan.distinct + taken,
            chunks=ledger.plan.count,
            chunk_size=fixed.chunk_size,
            chunks_done=ledger.chunks_done,
            texts_done=ledger.texts_done + taken,
            texts_saved=sum(saved.values()),
            quarantined=sum(bad_rows),
        )
        wanted.emit(opened)
        return self._output_of(fixed, ledger, table, reuse)

    def _output_of(
        self, fixed: Fixed, ledger: Ledger, table: StagedTable, reuse: Reuse | None = None
    ) -> OutputRun:
        config = self._config
        source = self._source
        name = ledger.layout.name
        device_kind = self._resources.devices[0].kind
        encode = config.effective_encode(name)
        cores = len(os.sched_getaffinity(0)) // config.workers.per_device
        threads = config.env.get("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS"))
        # Chunk, attempt, start, stop and digest of the texts (0, "") are set for each attempt.
        job = Spec(
            *(ledger.fingerprint, name, 0, 0, 0, 0, "", device_kind),
            source.spec(config.model),
            encode_spec(encode),
            import_path=(str(self._resources.request.loaded.folder),),
            threads=thread_count(threads, device_kind, cores),
        )
        form = asked_form(config.outputs[name], fixed.carried)
        return OutputRun(
            ledger,
            table.without(reuse),
            job,
            resolve_limits(encode, device_kind, plugin=config.model.is_plugin),
            partial(
                finish_output,
                JoinInputs(ledger, table, reuse),
                form,
                fixed,
                source,
                config.chunk.keep,
                self._resources.request.more,
            ),
            form,
            source,
            taken=reuse.texts_copied if reuse else 0,
            without_blanks=_without_blanks(config.outputs[name]),
        )


def _without_blanks(output: OutputConfig) -> str:
    """Return a condition for `where` that leaves blank texts out.

    Empty if a template makes the texts, or the output has a condition already.
    """
    if output.template is not None or output.where is not None:
        return ""
    text = f"({output.sql})" if output.sql is not None else f'"{output.column}"'
    return f"trim({text}) <> ''"


def pace_before(config: Config) -> tuple[float | None, float]:
    """Return the texts a second of the last run or trial in the workdir, and its `entry_s`.

    That is how many seconds a worker has its device before it computes: a CUDA context is made, and
    the weights are copied. (None, 0) if none is known.
    """
    commit = None
    for state in states_with_trials(config.workdir, Layout(config.workdir).events):
        commit = state.last_commit or commit
    if commit is None:
        return None, 0.0
    entry_s = [commit.phase_s.get(phase, 0.0) for phase in (Phase.CUDA_INIT, Phase.WEIGHTS_COPY)]
    return commit.texts_per_s, sum(entry_s)


def propose(
    texts_per_s: float | None, entry_s: float, workers: int, device_kind: str
) -> tuple[int, str]:
    """Propose how many texts a chunk is to have, and say why.

    The number is rounded to one significant digit: 1,700 texts in 40 s become 2,000. So a chunk
    takes 27 to 60 s if `entry_s` is short.
    """
    if texts_per_s is None:
        size = 3000 if device_kind == "cuda" else 500
        return size, f"usual for {device_kind}; no rate is known here yet"
    rate = texts_per_s / workers
    # The entry is to be under 2 % of the chunk's time, even if the size is rounded down.
    target_s = max(_TARGET_S, 75 * entry_s)
    size = min(50_000, max(100, int(float(f"{rate * target_s:.1g}"))))
    return size, f"at {rate:,.3g} texts/s of a worker, {max(1, round(size / rate)):,} s a chunk"
