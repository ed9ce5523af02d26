"""How many texts of each output a run would find to have a vector already. It writes nothing into a workdir."""

import os
from collections.abc import Iterator, Mapping
from itertools import chain, count
from pathlib import Path

from chunkvisor.assemble.form import asked_form
from chunkvisor.commands.planning.samples import Sample
from chunkvisor.config.model import Config, EngineKind
from chunkvisor.ingest.indexing import index_of
from chunkvisor.ingest.table import TableFiles
from chunkvisor.ingest.textindex import matches
from chunkvisor.ingest.wherewriter import WhereWriter
from chunkvisor.store.arithmetic import arithmetic_variables
from chunkvisor.store.identity import identity_of
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.reuse import PlaceKind, read_reuse
from chunkvisor.store.seal import DamagedError
from chunkvisor.supervise.candidates import Candidate, of_final, of_other_workdirs


def known_texts(config: Config, samples: Mapping[str, Sample], revision: str, scratch: Path) -> dict[str, int]:
    """Of each output; no file is checked as a run checks it. Raises Halt (78) for a wrong `reuse_from`, OSError."""
    on_ray = config.engine.kind is EngineKind.RAY
    arithmetic = arithmetic_variables({} if on_ray else os.environ, config.env)
    found, before = dict[str, int](), list[tuple[str, Path]]()
    for name, sample in samples.items():
        table = sample.table
        vectors = identity_of(config, name, revision, table.digest, table.rows, arithmetic).of_vectors
        layout, index = Layout(config.workdir).output(name), TableFiles(table.folder).index
        if sample.ours:  # a run has looked
            try:
                reuse = read_reuse(layout)
            except DamagedError:
                reuse = None
            found[name] = reuse.taken if reuse is not None else 0
        elif config.reuse and index.exists():
            folder = scratch / f"known-{len(found)}"
            folder.mkdir(mode=0o700)
            writer = WhereWriter(folder, table)
            for candidate in _candidates(config, name, vectors, folder):
                for here, there in matches(index, candidate.index):
                    known = candidate.numbers(there) >= 0
                    writer.add(0, here[known], there[known])
            for here, there in chain.from_iterable(matches(index, path) for of, path in before if of == vectors):
                writer.add(0, here, there)
            found[name] = table.distinct - writer.write()[0]
        gives_vectors = index.exists() and asked_form(config.outputs[name]).is_of_rows
        before += [(vectors, index)] if gives_vectors else []
    return found


def _candidates(config: Config, name: str, vectors: str, scratch: Path) -> Iterator[Candidate]:
    layout, numbers = Layout(config.workdir), count()

    def index(of: OutputLayout, _: str) -> Path | None:
        return index_of(of.table, lambda: None, scratch / f"index-{next(numbers)}")

    for folder in layout.outputs.glob("*/"):
        other = layout.output(folder.name)
        yield from filter(
            None, [of_final(each, vectors, PlaceKind.OUTPUT, name, index) for each in (other, other.earlier)]
        )
    yield from of_other_workdirs(config.reuse_from, vectors, index)
