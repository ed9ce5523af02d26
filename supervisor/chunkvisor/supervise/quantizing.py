"""Which model in int8 makes an output's vectors: the one it was begun with, one at hand, or one of the run's texts.

Vectors of two calibrations never stand in one output, nor are they taken over for each other: the digest is part of the
identity.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from chunkvisor.assemble.combine import refuse_unequal
from chunkvisor.config.choices import Dtype
from chunkvisor.config.model import Config
from chunkvisor.config.specs import encode_spec
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.engine.quantization import MOST_TEXTS, Sample, adopt, is_whole
from chunkvisor.errors import Halt, config_error
from chunkvisor.events.run import Note
from chunkvisor.ingest.sampled import sampled
from chunkvisor.ingest.table import StagedTable
from chunkvisor.store.fixed import Fixed, read_fixed
from chunkvisor.store.identity import UNREAD, Identity
from chunkvisor.store.layout import Layout
from chunkvisor.store.seal import DamagedError
from chunkvisor.supervise.begin import stage_ahead
from chunkvisor.supervise.candidates import workdir_of
from chunkvisor.supervise.fixedbefore import begun_before, identity_for, refuse_other_settings
from chunkvisor.supervise.opening import Opening
from chunkvisor_worker.contract.messages import ModelSpec

_MOST_CHARS = 100_000
"""Of a text of the sample: no model that is quantised in minutes reads more."""

Quantize = Callable[[ModelSource, Sequence[Sample], str | None], str]
"""Has the model quantised on these texts, see `ensure_quantized`; returns its digest. Raises Halt, OSError."""


def quantized_of(opening: Opening, quantize: Quantize) -> dict[str, str]:
    """The digest of the model of each output; nothing where the dtype is not int8. Raises as `begin_output`."""
    config = opening.config
    if config.model.dtype is not Dtype.INT8:
        return {}
    layout = Layout(config.workdir)
    begun = {name: begun_before(layout.output(name)) for name in config.outputs}
    own = {name: _quantized(opening, name, fixed) for name, fixed in begun.items() if fixed is not None}
    if len(own) == len(begun):
        return own
    digest = _at_hand(opening, layout, list(own.values()))
    if digest is None:
        tables = {name: stage_ahead(opening, layout.output(name)) for name, fixed in begun.items() if fixed is None}
        refuse_unequal(config.combine, {name: table.rows for name, table in tables.items()})
        digest = quantize(opening.source, samples_of(config, tables | _tables(layout, own)), None)
    return {name: own.get(name, digest) for name in begun}


def require_quantized(
    config: Config, source: ModelSource, models: Sequence[ModelSpec], quantize: Quantize, on_wait: Callable[[], None]
) -> None:
    """Have the model in int8 of all these outputs be there; made again where it is gone.

    Raises Halt (78) where that gives another, or not all have the same; and as `Quantize`.
    """
    layout = Layout(config.workdir)
    digest, *others = {Path(str(model.converted)).name for model in models}
    if others:
        raise config_error(
            "the outputs that are left were begun with models that were quantised apart from each other",
            remedy="run each with a config of its own, or start over by adding --from-scratch",
        )
    if is_whole(layout.converted, digest, on_wait):
        return
    others_have = (workdir_of(folder).converted for folder in config.reuse_from)
    if any(adopt(theirs, layout.converted, digest, on_wait) for theirs in others_have):
        return
    found = quantize(source, samples_of(config, _tables(layout, config.outputs)), digest)
    if found != digest:
        raise config_error(
            f"the model in int8 is not in its place any more, {layout.converted / digest}, and quantised again it "
            "is another one",
            why="vectors of both would be mixed in one file; nothing has been touched",
            remedy="put that folder back, or discard what is done by adding --from-scratch",
        )


def _quantized(opening: Opening, name: str, fixed: Fixed) -> str:
    if fixed.identity.quantized is None:
        refuse_other_settings(opening, Layout(opening.config.workdir).output(name), fixed)
    assert fixed.identity.quantized is not None
    return fixed.identity.quantized


def _at_hand(opening: Opening, layout: Layout, own: Sequence[str]) -> str | None:
    """A model that is there and makes vectors of the run's other outputs, or such as `reuse` would take over."""
    for digest in own:
        if is_whole(layout.converted, digest, opening.on_wait):
            return digest
    if opening.from_scratch or not opening.config.reuse:
        return None
    wanted = identity_for(opening, next(iter(opening.config.outputs)), "", UNREAD, None)
    for workdir, digest in noted_elsewhere(opening.config, wanted):
        here, theirs = layout.converted, Layout(workdir).converted
        whole = is_whole(here, digest, opening.on_wait)
        if whole or (theirs != here and adopt(theirs, here, digest, opening.on_wait)):
            opening.emit(Note(f"in int8 as the model was quantised for other outputs of {workdir}"))
            return digest
    return None


def noted_elsewhere(config: Config, wanted: Identity) -> Iterator[tuple[Path, str]]:
    """Workdir and digest of what made the outputs of this workdir and of `reuse_from`, if it is the same model.

    Raises Halt (78) for a wrong `reuse_from`.
    """
    for layout in (Layout(config.workdir), *map(workdir_of, config.reuse_from)):
        for folder in sorted(layout.outputs.glob("*/")):
            with suppress(DamagedError, Halt):  # of what cannot be read, nothing is taken over either
                fixed = read_fixed(layout.output(folder.name))
                if fixed is not None and fixed.identity.quantized and fixed.identity.of_model == wanted.of_model:
                    yield layout.workdir, fixed.identity.quantized


def _tables(layout: Layout, names: Iterable[str]) -> dict[str, StagedTable]:
    """The texts of these outputs, where they are there: `clean` may have removed them."""
    found = {}
    for name in names:
        with suppress(DamagedError):
            found[name] = StagedTable.open(layout.output(name).table)
    return found


def samples_of(config: Config, tables: Mapping[str, StagedTable]) -> list[Sample]:
    """Texts of all outputs to quantise a model by, in the order of the config. Raises DamagedError, OSError."""
    names = [name for name in config.outputs if name in tables]
    encodes = [encode_spec(config.effective_encode(name)) for name in names]
    texts = sampled([tables[name] for name in names], MOST_TEXTS)
    return [Sample(encode, [text[:_MOST_CHARS] for text in some]) for encode, some in zip(encodes, texts, strict=True)]
