"""Whatever text a format can hold comes out as it went in."""

import csv
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkvisor.sources.readers import read_rows
from chunkvisor.sources.request import IngestRequest
from chunkvisor.sources.resolve import resolve
from chunkvisor.sources.stage import stage
from chunkvisor.sources.table import StagedTable

TEXTS = st.lists(
    st.text() | st.sampled_from(["\0", "\r", "\n", "\r\n", '"', '""', ",", "\t", "\ufeff", "NULL", "\x1a"])
)
LINES = TEXTS.map(lambda texts: [text.replace("\n", "").rstrip("\r") for text in texts])


def read_back(suffix: str, data: bytes) -> list[str]:
    """The texts of column `text` as the reader of that suffix gives them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        path.write_bytes(data)
        (file,) = resolve([str(path)])
        return [cells[0] for _, cells in read_rows(file, ("text",))]


@given(TEXTS, st.sampled_from([(".csv", ","), (".tsv", "\t")]), st.booleans())
def test_csv(texts: list[str], dialect: tuple[str, str], quote_all: bool) -> None:
    """CSV and TSV hold any text, beside any other."""
    suffix, delimiter = dialect
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL)
    writer.writerow(["first", "text", "last"])
    writer.writerows([text, text, "x"] for text in texts)

    assert read_back(suffix, out.getvalue().encode()) == texts


@given(TEXTS, st.booleans())
def test_jsonl(texts: list[str], ascii_only: bool) -> None:
    """JSON lines hold any text, escaped or not."""
    data = "".join(json.dumps({"text": text, "n": 1.5}, ensure_ascii=ascii_only) + "\n" for text in texts)

    if texts:
        assert read_back(".jsonl", data.encode()) == texts


@given(LINES.filter(bool), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_txt(texts: list[str], end: str, last_end: bool) -> None:
    """A .txt file holds any text without a line feed; a mark at the very start of the file is dropped."""
    data = end.join(texts) + end * (last_end or not texts[-1])
    if not data.removeprefix("\ufeff"):
        return

    expected = [texts[0].removeprefix("\ufeff"), *texts[1:]]
    assert read_back(".txt", data.encode()) == expected


@pytest.mark.parametrize("wanted", [{"column": "text"}, {"template": "{text}"}, {"sql": "text"}])
@given(texts=TEXTS.filter(bool))
@settings(max_examples=15, deadline=None)
def test_staged(wanted: dict[str, Any], texts: list[str]) -> None:
    """Staging keeps every row's text, and numbers distinct texts by first occurrence."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        (folder / "table").mkdir()

        stage(IngestRequest(sources=(f"{folder}/a.jsonl",), **wanted), folder / "table")

        table = StagedTable.open(folder / "table")
        distinct = list(dict.fromkeys(texts))
        assert table.texts(0, table.distinct) == distinct
        assert table.row_text(0, table.rows).tolist() == [distinct.index(text) for text in texts]
        assert table.first_row(0, table.distinct).tolist() == [texts.index(text) for text in distinct]
