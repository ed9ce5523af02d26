"""Rows whose texts the model reads in part: counted and listed, whatever becomes of the attempts
and of the files.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import modelkinds
from chunkvisor import testing
from harness import Workplace, events_in

pytestmark = pytest.mark.model

LONG = "w" * 100
"""102 tokens with those at both ends; the small model reads 64."""
TEXTS = [
    "short",
    LONG,
    "brief",
    LONG,
    "w" * 62,
    "w" * 63,
    *(f"text {number}" for number in range(6)),
]
CUT = {1: 102, 3: 102, 5: 65}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 64 tokens, one a byte, that takes no second to load."""
    return modelkinds.bert(tmp_path_factory.mktemp("model"))


def prepare(workplace: Workplace, model: Path, texts: list[str] = TEXTS, **keys: Any) -> None:
    """Write source and config."""
    workplace.prepare(texts, "sentence-transformers", model__name=str(model), chunk__size=6, **keys)


def listed(workplace: Workplace) -> dict[int, int]:
    """Row -> tokens, as the file has them."""
    lines = events_in(workplace.workdir / "out.truncated.jsonl")
    return {each["row"]: each["tokens"] for each in lines}


def test_cut_rows_are_counted_and_listed(workplace: Workplace, model: Path) -> None:
    """Manifest, last lines and status say how many rows were cut, and a file says which; so after
    an update.
    """
    prepare(workplace, model)
    ended = workplace.ends(0)
    assert listed(workplace) == CUT
    said = workplace.manifest()["truncated"]
    assert (said["rows"], said["file"]) == (3, "out.truncated.jsonl")
    assert "3 rows cut at 64 tokens, listed in out.truncated.jsonl" in ended.stderr
    assert workplace.progress()["truncated"] == 3
    workplace.does("verify")
    (workplace.workdir / "out.truncated.jsonl").write_text("")
    assert "out.truncated.jsonl" in workplace.does("verify", code=74).stderr
    workplace.ends(0)
    assert listed(workplace) == CUT

    # An update encodes the new texts alone, and still lists the cut rows among those that it takes
    # over.
    prepare(workplace, model, ["first", LONG + "m", *TEXTS])
    workplace.ends(0, "--update")
    assert workplace.manifest()["texts_encoded"] == 2
    assert listed(workplace) == {1: 103} | {row + 2: tokens for row, tokens in CUT.items()}

    # What is encoded anew without a cut row has a count of 0, and no list.
    prepare(workplace, model, ["short", "brief"])
    workplace.ends(0, "--from-scratch", "--yes")
    assert workplace.manifest()["truncated"] == {"rows": 0}
    # The emptied list was put aside when the right one took its place; nothing else is left.
    assert [path.stat().st_size for path in workplace.workdir.rglob("*.truncated.jsonl*")] == [0]


def test_cut_rows_outlive_a_kill(workplace: Workplace, model: Path) -> None:
    """What an attempt found before it was killed is listed, though another finishes its chunk."""
    prepare(workplace, model, encode__batch_size=1)
    with testing.fault("crashed", chunk=0):
        workplace.ends(0)
    assert workplace.status()["attempts"] == {"committed": 2, "crashed": 1}
    assert listed(workplace) == CUT


def test_cut_rows_of_one_file(workplace: Workplace, model: Path) -> None:
    """`chunkvisor encode` puts the list next to its file, and its manifest names it."""
    workplace.write_source(TEXTS[:3])
    out = workplace.folder / "mine.npy"
    options = ("--column", "text", "--model", str(model), "--device", "cpu", "-o", str(out))
    ended = workplace.call("encode", workplace.source, *options, code=0)
    assert "1 row cut at 64 tokens" in ended.stderr
    assert out.with_suffix(".truncated.jsonl").read_text() == '{"row": 1, "tokens": 102}\n'
    assert (
        json.loads(out.with_suffix(".json").read_text())["truncated"]["file"]
        == "mine.truncated.jsonl"
    )
    workplace.call("verify", out, code=0)
