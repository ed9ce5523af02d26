"""The indexes by which an output looks up its texts elsewhere; those that are missing are made, once."""

from pathlib import Path
from types import TracebackType

from chunkvisor.events.run import Note
from chunkvisor.sources.index import index_of
from chunkvisor.sources.table import TableFiles
from chunkvisor.store.outputlayout import OutputLayout
from chunkvisor.supervise.opening import Opening
from chunkvisor_worker.contract.files import remove_folder


class Indexes:
    """For one output. Those of other workdirs, which are only read, are made in a folder of ours and go afterwards."""

    def __init__(self, opening: Opening, name: str, folder: Path) -> None:
        self._opening = opening
        self._name = name
        self._folder = folder
        self._made = 0

    def __enter__(self) -> "Indexes":
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        remove_folder(self._folder)

    def of(self, layout: OutputLayout, words: str) -> Path | None:
        """Of an output's texts, which the words describe; None where they are not there any more. Raises OSError."""
        if TableFiles(layout.table).holds_index():
            return TableFiles(layout.table).index
        elsewhere = None
        if layout.workdir != self._opening.config.workdir:
            self._folder.mkdir(exist_ok=True)
            self._made += 1
            elsewhere = self._folder / f"{self._made:03d}"
        index = index_of(layout.table, self._opening.on_wait, elsewhere)
        told = f"the texts of {words} had no index, and were indexed"
        if index is None:
            told = f"nothing can be taken from {words}: it has no index of its texts, and they have been removed"
        self._opening.emit(Note(f"{self._name}: {told}"))
        return index
