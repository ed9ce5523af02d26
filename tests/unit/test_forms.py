"""Forms of a final: what each type of number and each format makes of the vectors, and what is made
of what.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from chunkvisor.commands.housekeeping import final_checks as _final
from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.config.model import OutputConfig
from chunkvisor.events.event import Event
from chunkvisor.messages import reasons_in_words, reasons_of
from chunkvisor.outputs.forms import (
    FORM_KEYS,
    FORMATS,
    Form,
    VectorType,
    digest_in,
    file_of,
    form_of,
)
from chunkvisor.outputs.join import write_form
from chunkvisor.outputs.publish import ensure_form
from chunkvisor.outputs.state import OutputState, Stage, final_record_of
from chunkvisor.store.artifact import BadVectorsError
from chunkvisor.store.layout import OutputLayout
from harness import halts
from staged import first_come_first_numbered
from unit.test_join import DIMENSION, assembled, finished, publish_joined

ROWS = first_come_first_numbered([0, 1, 0, 2, 3, 4, 4, 5, 6, 1, 7])
NEEDS_PYARROW = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed"
)
FORMATS_HERE = [FinalFormat.NPY, pytest.param(FinalFormat.PARQUET, marks=NEEDS_PYARROW)]


def vectors(rows: int, dimension: int) -> np.ndarray:
    """Vectors with what is hard to round: a constant dimension, zeros, and numbers of very
    different size.
    """
    made = np.random.default_rng(1).standard_normal((rows, dimension)).astype(np.float32)
    made[:, 0], made[1] = 0.25, 0
    made[:, -1] *= 1e-4
    return made


def complete(layout: OutputLayout) -> OutputState:
    """As a run finds it."""
    return OutputState(Stage.COMPLETE, layout, None, final_record_of(layout))


@pytest.mark.parametrize("dtype", list(FinalDtype))
def test_each_type_keeps_what_it_can(dtype: FinalDtype) -> None:
    """What is stored is the vector, as near as the type can have it; a row without one is NaN."""
    block = vectors(20, 24)
    block[7] = np.nan
    vector_type = VectorType(dtype, 24)
    stored = vector_type.convert(block.copy())
    assert (stored.dtype, stored.shape) == (np.dtype(vector_type.numpy), (20, 24))
    assert stored[0].nbytes == vector_type.row_bytes
    rtol, atol = (0.001, 1e-7) if dtype is FinalDtype.FLOAT16 else (0, 0)
    np.testing.assert_allclose(stored, block, rtol=rtol, atol=atol)


def test_what_float16_cannot_hold(tmp_path: Path) -> None:
    """A number too large for float16 is refused, also next to a row that is NaN throughout."""
    block, layout = np.ones((4, 3), dtype=np.float32), OutputLayout(tmp_path, "out")
    layout.hidden.mkdir()
    block[1], block[2, 1] = np.nan, 70_000
    with halts(78, "do not fit into float16"):
        write_form(
            layout, Form(dtype=FinalDtype.FLOAT16), 4, 3, lambda: iter([block]), lambda: None
        )
    assert not list(layout.hidden.iterdir())


def test_every_form_is_known_everywhere() -> None:
    """A format or a key that was forgotten somewhere is named: registry, manifest, documentation."""
    assert set(FORMATS) == set(FinalFormat)
    documented = Path(__file__).parents[2].joinpath("docs/reference/config.md").read_text()
    for key in FORM_KEYS:
        assert key in OutputConfig.model_fields
        assert f"`outputs.NAME.{key}`" in documented
    for value in (*FinalFormat, *FinalDtype):
        assert f"`{value}`" in documented


@pytest.mark.parametrize("format", FORMATS_HERE)
@pytest.mark.parametrize("dtype", list(FinalDtype))
def test_a_form_of_the_chunks_and_of_a_finished_final(
    format: FinalFormat,  # noqa: A002 - as the key is called
    dtype: FinalDtype,
) -> None:
    """Chunks joined into a form, and a finished float32 final made into it, give the same files;
    verify agrees.
    """
    form, notes, vector_type = Form(format, dtype), list[Event](), VectorType(dtype, DIMENSION)
    with assembled(ROWS, 3, 2) as (ledger, table, right):
        layout = ledger.layout
        _, joined = publish_joined(ledger, table, form)
        final = file_of(layout, joined)
        read = FORMATS[format].read
        found = list(read(final, len(ROWS), vector_type, digest_in(joined)))
        np.testing.assert_array_equal(np.concatenate(found), vector_type.convert(right))
        if format is FinalFormat.NPY:
            loaded = np.load(final, mmap_mode="r", allow_pickle=False)
            np.testing.assert_array_equal(loaded, np.concatenate(found))
        with pytest.raises(BadVectorsError, match="has another digest"):
            list(read(final, len(ROWS), vector_type, "0" * 64))

        publish_joined(ledger, table)
        assert not list(layout.workdir.glob("out.parquet*"))
        ensure_form(complete(layout), form, {}, notes.append, lambda: None)
        made = finished(layout)
        assert made == joined
        assert form_of(made) == form
        assert layout.final.exists() == (final == layout.final)
        assert [finding for finding in _final(layout) if finding.problem] == []
        assert len(notes) == (form != Form())
        assert not list(layout.hidden.glob("out.*"))


def test_what_is_rounded() -> None:
    """Of float16 without its chunks no other type is made, and all stays."""
    with assembled(ROWS, 3, 2) as (ledger, table, _):
        layout = ledger.layout
        publish_joined(ledger, table, Form(dtype=FinalDtype.FLOAT16))
        layout.chunks.rename(layout.workdir / "away")
        before = finished(layout)
        with halts(78, "complete in float16, and the config now asks for another form"):
            ensure_form(complete(layout), Form(), {}, lambda _: None, lambda: None)
        assert finished(layout) == before


# Rows without a vector, grouped by the reason, wherever a person reads of them

CRASH, NAN, LONG = (
    ("crashed", "it died"),
    ("bad_output", "NaN in text 7"),
    ("bad_input", "too long"),
)


def rows(*counts: tuple[tuple[str, str], int]) -> list[dict[str, str]]:
    """So many rows of each reason, as a manifest lists them."""
    return [
        {"outcome": outcome, "reason": reason}
        for (outcome, reason), count in counts
        for _ in range(count)
    ]


OTHERS = [(("crashed", word), 1) for word in ("here", "there")]
COUNTED = [
    "5 rows: crashed: it died",
    "4 rows: bad_output: NaN in text 7",
    "3 rows: bad_input: too long",
]
WORDS = [
    ([(CRASH, 1)], ["crashed: it died"]),
    ([(CRASH, 37)], ["all 37 for the same reason: crashed: it died"]),
    (
        [(CRASH, 1), (NAN, 2), (("bad_output", "NaN in text 81"), 1)],
        [COUNTED[1].replace("4", "3"), "1 row: crashed: it died"],
    ),
    ([(LONG, 3), (CRASH, 5), (NAN, 4), *OTHERS], [*COUNTED, "2 rows: 2 other reasons"]),
]


@pytest.mark.parametrize(("counts", "lines"), WORDS)
def test_reasons_in_words(counts: list[tuple[tuple[str, str], int]], lines: list[str]) -> None:
    """Reasons that differ in numbers alone are one, the most frequent comes first."""
    listed = rows(*counts)
    assert reasons_in_words(reasons_of(listed), len(listed)) == lines
    more = reasons_in_words(reasons_of(listed * 2), len(listed) * 3)
    assert more[0] == f"of the first {len(listed) * 2}:"
