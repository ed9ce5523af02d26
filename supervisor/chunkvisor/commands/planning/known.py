"""How many texts of each output a run would find to have a vector already. It writes nothing into a workdir."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkvisor.assemble.unpack import Scratch
from chunkvisor.commands.planning.samples import Sample
from chunkvisor.config.choices import EngineKind
from chunkvisor.config.model import Config
from chunkvisor.ingest.indexing import index_of
from chunkvisor.ingest.tablefiles import TableFiles
from chunkvisor.ingest.textindex import matches
from chunkvisor.ingest.wherewriter import WhereWriter
from chunkvisor.store.arithmetic import arithmetic_variables
from chunkvisor.store.identity import Identity, identity_of
from chunkvisor.store.layout import Layout
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.store.reuse import PlaceKind, read_reuse
from chunkvisor.store.seal import DamagedError
from chunkvisor.supervise.candidates import Means, dtype_of, gives_vectors, of_final, of_other_workdirs, sources_first

_AS_THEY_ARE, _CUT = 0, 1


@dataclass(frozen=True, slots=True)
class Known:
    """Texts of one output that have a vector."""

    texts: int = 0
    cut: int = 0
    """Those of them whose vectors are cut from longer ones, or normalized."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where some may be."""

    is_cut: bool
    index: Path
    numbers: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]] = lambda rows: rows
    """See `Candidate`."""


def known_texts(
    config: Config, samples: Mapping[str, Sample], revision: str, dtype: str | None, scratch: Path
) -> dict[str, Known]:
    """Of each output; no file is checked as a run checks it. `dtype` is the one in which the model computes.

    Raises Halt (78) for a wrong `reuse_from`, OSError.
    """
    on_ray = config.engine.kind is EngineKind.RAY
    arithmetic = arithmetic_variables({} if on_ray else os.environ, config.env)
    identities = {
        name: identity_of(config, name, revision, each.table.digest, each.table.rows, arithmetic)
        for name, each in samples.items()
    }
    found, before = dict[str, Known](), list[str]()
    for name in sources_first(config, identities):
        sample, layout = samples[name], Layout(config.workdir).output(name)
        index = TableFiles(sample.table.folder).index
        if sample.ours:  # a run has looked
            try:
                reuse = read_reuse(layout)
            except DamagedError:
                reuse = None
            cut = sum(each.texts for each in (reuse.places if reuse is not None else ()) if each.cut)
            found[name] = Known(reuse.taken, cut) if reuse is not None else Known()
        elif config.reuse and index.exists():
            folder = scratch / f"known-{len(found)}"
            folder.mkdir(mode=0o700)
            writer = WhereWriter(folder, sample.table)
            places = [
                *_finals(config, identities[name], folder),
                *_earlier(config, identities, samples, before, name, dtype),
            ]
            for place in sorted(places, key=lambda each: each.is_cut):
                for here, there in matches(index, place.index):
                    known = place.numbers(there) >= 0
                    writer.add(_CUT if place.is_cut else _AS_THEY_ARE, here[known], there[known])
            encoded, taken = writer.write()
            found[name] = Known(sample.table.distinct - encoded, taken.get(_CUT, 0))
        if index.exists() and gives_vectors(config, name):
            before.append(name)
    return found


def _finals(config: Config, wanted: Identity, scratch: Path) -> Iterator[_Place]:
    """What is finished; indexes that are missing are made in `scratch`."""
    layout, numbers = Layout(config.workdir), count()

    def index(of: OutputLayout, _: str) -> Path | None:
        return index_of(of.table, lambda: None, scratch / f"index-{next(numbers)}")

    means = Means(index, Scratch(scratch))

    for folder in layout.outputs.glob("*/"):
        other = layout.output(folder.name)
        for each in (other, other.earlier):
            if (final := of_final(each, wanted, PlaceKind.OUTPUT, other.name, means)) is not None:
                yield _Place(bool(final.place.cut), final.index, final.numbers)
    for final in of_other_workdirs(config.reuse_from, wanted, means):
        yield _Place(bool(final.place.cut), final.index, final.numbers)


def _earlier(
    config: Config,
    identities: Mapping[str, Identity],
    samples: Mapping[str, Sample],
    names: Sequence[str],
    name: str,
    dtype: str | None,
) -> Iterator[_Place]:
    """What the same run finishes before."""
    for other in names:
        there = dtype_of(Layout(config.workdir).output(other), dtype)
        cut = identities[name].cut_from(identities[other], there)
        if cut is not None:
            yield _Place(bool(cut), TableFiles(samples[other].table.folder).index)
