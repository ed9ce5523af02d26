"""Makes the reuse plan of an output: looks up its texts where vectors of the same identity are."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from chunkvisor.assemble.reader import copy_rows
from chunkvisor.events.event import Emit, Warned
from chunkvisor.sources.dedupe import WhereWriter, matches
from chunkvisor.sources.table import StagedTable, TableFiles
from chunkvisor.store.layout import unfinished
from chunkvisor.store.reuse import Place, PlaceKind, ReuseFiles, write_plan
from chunkvisor.supervise.candidates import Candidate
from chunkvisor_worker.contract.files import make_folder, remove_folder
from chunkvisor_worker.contract.messages import Facts


class Planner:
    """Of one run: what it has checked, it need not check again."""

    def __init__(self, emit: Emit, on_wait: Callable[[], None]) -> None:
        self._emit = emit
        self._on_wait = on_wait
        self._problems: dict[tuple[str, str], str | None] = {}

    def plan(
        self, name: str, folder: Path, table: StagedTable, candidates: Iterable[Candidate], *, needed: bool
    ) -> Facts | None:
        """Make the plan of the output in `folder`, from the candidates in the order in which they are preferred.

        There is none where nothing can be taken, unless it is `needed`. Returns the facts of the first vectors that are
        taken, where they are known. Raises OSError, Halt.
        """
        partial = unfinished(folder)
        remove_folder(partial)
        make_folder(partial, durable=False)  # its name comes with the last rename
        used, facts = self._look_up(name, partial, table, candidates)
        encoded, places = table.distinct, list[Place]()
        if used:
            encoded, places = self._write(partial, table, used)
        if not places and not needed:
            remove_folder(partial)
            return None
        write_plan(partial, table.distinct, encoded, places)
        remove_folder(folder)
        # The name is on the disk with the facts, or with the first chunk; until then nothing rests on the plan.
        partial.rename(folder)
        return facts

    def _look_up(
        self, name: str, folder: Path, table: StagedTable, candidates: Iterable[Candidate]
    ) -> tuple[list[Candidate], Facts | None]:
        """Those that have some of the texts, numbered as in the matches that are put by."""
        writer, used, facts = WhereWriter(folder, table), list[Candidate](), None
        ours = TableFiles(table.folder).index
        for candidate in candidates:
            if facts is not None and candidate.facts is not None and facts.dimension != candidate.facts.dimension:
                continue
            has_some = False
            for here, there in matches(ours, candidate.index):
                self._on_wait()
                numbers = candidate.numbers(there)
                known = numbers >= 0
                if not known.any():
                    continue
                if not has_some and (problem := self._problem(candidate)) is not None:
                    self._emit(Warned(f"{name}: no vectors are reused from {candidate.place.words}: {problem}"))
                    break
                has_some = True
                writer.add(len(used), here[known], numbers[known])
            if has_some:
                used.append(candidate)
                facts = facts or candidate.facts
        return used, facts

    def _write(self, folder: Path, table: StagedTable, used: Sequence[Candidate]) -> tuple[int, list[Place]]:
        encoded, taken = WhereWriter(folder, table).write()
        copies = {
            number: each.reader
            for number, each in enumerate(used)
            if each.place.kind is PlaceKind.COPY and each.reader is not None and number in taken
        }
        copy_rows(folder, copies, self._on_wait)
        files = ReuseFiles(folder)
        for path in (files.where, files.encoded, files.copied):
            if path.exists():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
        return encoded, [replace(each.place, texts=taken.get(number, 0)) for number, each in enumerate(used)]

    def _problem(self, candidate: Candidate) -> str | None:
        place = candidate.place
        key = (place.words, place.final_digest)
        if key not in self._problems:
            self._problems[key] = candidate.problem(self._on_wait)
        return self._problems[key]
