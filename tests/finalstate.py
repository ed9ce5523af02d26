"""What finished outputs over known rows have to be: computed here by itself, in each form."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from harness import vector_of
from scripted_workplace import ScriptedWorkplace
from sourcefiles import Row

SIGNED = """
import scripted
class Encoder(scripted.Encoder):
    def encode(self, texts, batch_size):
        return (super().encode(texts, batch_size) - 128.25) / 7
def make(model, device):
    return Encoder()
"""
CONDITIONS: dict[str, Callable[[Row], bool]] = {
    "CAST(id AS BIGINT) % 3 <> 0": lambda row: row[0] % 3 != 0,
    "coalesce(length(text), 0) < 5": lambda row: len(row[1] or "") < 5,
}
"""Of CSV, all columns are text, and what is missing is empty."""
OTHER = "also {text}"
"""Template of the second output, which is of the same rows."""


def stored(texts: list[str], dtype: str) -> np.ndarray:
    """The numbers that a final of the texts has."""
    vectors: np.ndarray = (np.stack([vector_of(text) for text in texts]) - np.float32(128.25)) / np.float32(7)
    if dtype == "ubinary":
        return np.packbits(vectors > 0, axis=-1)
    if dtype == "int8":
        low, high = vectors.min(axis=0), vectors.max(axis=0)
        steps = np.where(high > low, (high - low) / np.float32(255), np.float32(1))
        vectors = np.clip(np.floor((vectors - low) / steps), 0, 255) - 128
    return vectors.astype(dtype)


@dataclass(frozen=True)
class State:
    """What a finished run has to leave."""

    rows: tuple[Row, ...]
    output: dict[str, Any] = field(hash=False)
    """The section of `out`, without its source; of `other` the template is another one."""

    @property
    def kept(self) -> list[tuple[int, Row]]:
        """(number in the source, row) of what `where` leaves."""
        where = self.output.get("where")
        return [(number, row) for number, row in enumerate(self.rows) if where is None or CONDITIONS[where](row)]

    def texts(self, name: str) -> list[str]:
        """Of the rows of an output."""
        return [(OTHER if name == "other" else "{text}").format(text=row[1] or "") for _, row in self.kept]

    def problem(self, place: ScriptedWorkplace, name: str) -> str:
        """What is wrong with the files of an output; empty where nothing is."""
        form, right = self.output, stored(self.texts(name), self.output.get("dtype", "float32"))
        suffix = form.get("format", "npy")
        one, folder = place.workdir / f"{name}.{suffix}", place.workdir / name
        paths = sorted(folder.glob(f"*.{suffix}")) if "shards" in form else [one]
        if not paths or not all(path.exists() for path in paths):
            return f"{paths} of {name} are not there"
        if "shards" in form and len(paths) != min(form["shards"], len(right)):
            return f"{len(paths)} shards"
        if suffix == "npy":
            found = np.concatenate([np.load(path, allow_pickle=False) for path in paths])
        else:
            found = np.concatenate([_vectors(path) for path in paths])
        if (found.dtype, found.shape) != (right.dtype, right.shape):
            return f"{found.dtype} {found.shape}, not {right.dtype} {right.shape}"
        if not np.array_equal(found, right):
            return f"rows {np.flatnonzero((found != right).any(axis=1)).tolist()} have other vectors"
        return ""

    def problem_beside(self, place: ScriptedWorkplace, name: str) -> str:
        """What is wrong with the manifest, and with what is carried along."""
        manifest = json.loads((place.workdir / f"{name}.json").read_text())
        if (manifest["rows"], manifest["quarantined"]) != (len(self.kept), []):
            return f"{manifest['rows']} rows for {len(self.kept)}, {manifest['quarantined']}"
        wanted = {"row": list(range(len(self.kept)))}
        if "where" in self.output:
            wanted["source_row"] = [number for number, _ in self.kept]
        if "columns" in self.output:
            wanted["id"] = [row[0] for _, row in self.kept]
        is_table, table = self.output.get("format") == "parquet", place.workdir / f"{name}.rows.parquet"
        if is_table:
            table = place.workdir / (f"{name}/*.parquet" if "shards" in self.output else f"{name}.parquet")
        elif len(wanted) == 1:
            return f"{table} is there" if table.exists() else ""
        columns = duckdb.execute(f"SELECT {', '.join(wanted)} FROM '{table}' ORDER BY row").fetchnumpy()
        found = {column: [int(each) for each in columns[column]] for column in wanted}
        return "" if found == wanted else f"{found}, not {wanted}"


def _vectors(path: Path) -> np.ndarray:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    column = table["vector"].combine_chunks()
    found: np.ndarray = column.values.to_numpy(zero_copy_only=False).reshape(len(column), -1)
    return found


def with_rows(rows: tuple[Row, ...], output: dict[str, Any]) -> State:
    """The state; without `where` if that would leave nothing, which a run refuses."""
    state = State(rows, output)
    return state if state.kept else State(rows, {key: value for key, value in output.items() if key != "where"})
