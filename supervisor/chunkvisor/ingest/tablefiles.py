"""The files of a staged table, and the record that makes a folder of them a table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chunkvisor.ingest.remote import shown
from chunkvisor.ingest.signature import Signature
from chunkvisor.store.entry import Entry
from chunkvisor.store.seal import DamagedError, digest_of, read_sealed, write_sealed
from chunkvisor.store.stamp import Stamp, stamp_file


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Every path in the folder of a table, named once."""

    folder: Path

    texts = Entry("folder", "texts.bin")
    """The distinct texts in UTF-8, one after the other, in the order of their first rows."""
    offsets = Entry("folder", "offsets.bin")
    """uint64, little-endian, one more than there are texts: where each begins in `texts`, and the end."""
    row_text = Entry("folder", "row_text.bin")
    """int64, little-endian: number of each row's text."""
    first_row = Entry("folder", "first_row.bin")
    """int64, little-endian: first row of each text."""
    index = Entry("folder", "index.bin")
    """`textindex.RECORD`: hash and first row of each text, in the order of the hashes."""
    rows = Entry("folder", "rows.parquet")
    """Where columns are carried along or rows are left out: what is to be known of each row, see `rowstable`."""
    places = Entry("folder", "places.bin")
    """int64, little-endian, where rows are left out: number of each row in its file."""
    record = Entry("folder", "table.json")
    """Sealed JSON: counts, sources and the stamps of the others."""

    def holds_index(self) -> bool:
        """Whether there is an index, as the record has it. Raises OSError."""
        try:
            record = read_sealed(self.record)
            return record is not None and Stamp(**record["stamps"][self.index.name]).holds(self.index)
        except (DamagedError, KeyError, TypeError):
            return False

    @property
    def arrays(self) -> tuple[Path, ...]:
        """The files that every table has; the index is found by the record, too, but may be missing."""
        return self.texts, self.offsets, self.row_text, self.first_row

    @property
    def there(self) -> tuple[Path, ...]:
        """The files that some tables have, and this one has."""
        return tuple(path for path in (self.rows, self.places) if path.exists())


@dataclass(frozen=True, slots=True)
class TableSource:
    """Where the rows of one source file stand in the table."""

    path: Path
    first_row: int
    rows: int


def write_record(
    folder: Path,
    *,
    rows: int,
    distinct: int,
    files: Sequence[TableSource],
    source_state: Signature,
    skip_blank: bool,
    empty: int = 0,
) -> None:
    """Stamp the finished and synced arrays, and write the record that makes the folder a table. Raises OSError."""
    paths = TableFiles(folder)
    stamps = _stamps(paths)
    content = [stamps[path.name].digest for path in (paths.texts, paths.offsets, paths.row_text)]
    record = {
        "rows": rows,
        "distinct": distinct,
        "digest": digest_of(content),
        "files": [[shown(file.path), file.first_row, file.rows] for file in files],
        "signature": source_state,
        "skip_blank": skip_blank,
        "empty": empty,
        "stamps": {name: asdict(stamp) for name, stamp in stamps.items()},
    }
    write_sealed(paths.record, record)


def add_index(folder: Path) -> None:
    """Take an index that was made later into the record. Raises OSError, DamagedError."""
    paths = TableFiles(folder)
    record = read_sealed(paths.record)
    if record is None:
        raise DamagedError(f"{folder} holds no table")
    stamps = {**record["stamps"], paths.index.name: asdict(stamp_file(paths.index))}
    write_sealed(paths.record, {**record, "stamps": stamps})


def _stamps(paths: TableFiles) -> dict[str, Stamp]:
    index = [paths.index] if paths.index.exists() else []
    return {path.name: stamp_file(path) for path in (*paths.arrays, *paths.there, *index)}


def restamp(paths: TableFiles, record: dict[str, Any]) -> None:
    """Stamp anew what is there and of the same content. Raises DamagedError where it is not, OSError."""
    known = _stamps(paths)
    fresh = {name: known[name] for name in record["stamps"] if name != paths.index.name or name in known}
    if any(stamp.digest != record["stamps"][name]["digest"] for name, stamp in fresh.items()):
        raise DamagedError(f"{paths.folder} is being altered")
    write_sealed(paths.record, {**record, "stamps": {name: asdict(stamp) for name, stamp in fresh.items()}})
