"""Forms of a final: what each type of number and each format makes of the vectors, and what is made of what."""

import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chunkvisor.assemble import join as assemble
from chunkvisor.assemble.finished import keep_finished
from chunkvisor.assemble.forms import (
    FORM_KEYS,
    FORMATS,
    Form,
    all_partials,
    form_of,
    parts_of,
    place_of,
    without_vectors,
)
from chunkvisor.assemble.join import describe_files
from chunkvisor.assemble.manifest import publish_manifest, read_finished
from chunkvisor.assemble.numbers import Numbers, Ranges, TooLargeError
from chunkvisor.assemble.sides import ranges_of, write_sides
from chunkvisor.commands.verify import _final
from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.config.model import OutputConfig
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.store.layout import OutputLayout
from staged import first_come_first_numbered
from unit.test_assemble import DIMENSION, assembled

NONE = np.empty(0, dtype=np.int64)
ROWS = first_come_first_numbered([0, 1, 0, 2, 3, 4, 4, 5, 6, 1, 7])
NEEDS_PYARROW = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
FORMATS_HERE = [pytest.param(each, marks=NEEDS_PYARROW) if FORMATS[each].package else each for each in FinalFormat]


def vectors(rows: int, dimension: int) -> np.ndarray:
    """Vectors with what is hard to round: a constant dimension, zeros, and numbers of very different size."""
    made = np.random.default_rng(1).standard_normal((rows, dimension)).astype(np.float32)
    made[:, 0], made[1] = 0.25, 0
    made[:, -1] *= 1e-4
    return made


@pytest.mark.parametrize(
    ("rows", "manifests", "words"),
    [
        (1, {"a": {}}, "has no vector (in its place: NaN)"),
        (2, {"a": {"dtype": "float16"}, "b": {}}, "have no vector (in their place: NaN)"),
        (2, {"a": {"dtype": "ubinary"}}, "have no vector (in their place: zeros)"),
        (9, {"a": {"format": "parquet", "dtype": "int8"}}, "have no vector (in their place: null)"),
        (2, {"a": {}, "b": {"dtype": "int8"}}, "have no vector (in their place: NaN in a, zeros in b)"),
    ],
)
def test_what_stands_in_a_lost_row(rows: int, manifests: dict[str, dict[str, str]], words: str) -> None:
    """It is said by format and dtype, and by output where that differs."""
    assert without_vectors(rows, manifests) == words


@pytest.mark.parametrize("dimension", [8, 21])
def test_quantised_by_the_formula(dimension: int) -> None:
    """int8 counts the whole steps, of 255, from the least of its dimension, less 128; ubinary has a bit a sign."""
    block = vectors(57, dimension)
    ranges = Ranges(dimension)
    for start in range(0, 57, 10):
        ranges.take(block[start : start + 10], NONE)
    least, greatest = block.min(axis=0), block.max(axis=0)
    np.testing.assert_array_equal(ranges.values, [least, greatest])
    int8 = Numbers(FinalDtype.INT8, dimension).of(block, NONE, ranges.values)
    steps = (greatest - least) / np.float32(255)
    np.testing.assert_array_equal(int8, np.floor((block - least) / steps).clip(0, 255) - 128)
    ubinary = Numbers(FinalDtype.UBINARY, dimension).of(block, NONE, ranges.values)
    np.testing.assert_array_equal(ubinary, np.packbits(block > 0, axis=1))


@pytest.mark.model
@pytest.mark.soak(only=True)
@pytest.mark.parametrize("dtype", ["int8", "ubinary"])
@pytest.mark.parametrize("dimension", [8, 16, 384, 21])
def test_quantised_as_sentence_transformers_does(dtype: str, dimension: int) -> None:
    """int8 and ubinary are those of `quantize_embeddings` with the same ranges, bit by bit."""
    from sentence_transformers.util import quantize_embeddings

    block = vectors(57, dimension)
    ranges = Ranges(dimension)
    for start in range(0, 57, 10):
        ranges.take(block[start : start + 10], NONE)
    np.testing.assert_array_equal(ranges.values, [block.min(axis=0), block.max(axis=0)])
    made = Numbers(FinalDtype(dtype), dimension).of(block, NONE, ranges.values)
    right = quantize_embeddings(block, dtype, ranges=ranges.values)
    assert made.dtype == right.dtype
    np.testing.assert_array_equal(made, right)


@pytest.mark.parametrize("dtype", list(FinalDtype))
def test_each_type_keeps_what_it_can(dtype: FinalDtype) -> None:
    """What is stored stands for the vector it was made of; a row without one is NaN, or zero where there is no NaN."""
    block = vectors(20, 24)
    block[7] = np.nan
    missing, ranges = np.array([7]), Ranges(24)
    ranges.take(block, missing)
    numbers = Numbers(dtype, 24)
    stored = numbers.of(block.copy(), missing, ranges.values)
    assert (stored.dtype, stored.shape) == (np.dtype(numbers.numpy), (20, numbers.width))
    assert stored[0].nbytes == numbers.row_bytes
    assert np.isnan(stored[7]).all() if numbers.is_float else not stored[7].any()
    back, good = numbers.back(stored, ranges.values), np.delete(np.arange(20), 7)
    steps = (ranges.values[1] - ranges.values[0]) / 255
    if dtype is FinalDtype.UBINARY:
        np.testing.assert_array_equal(back[good] > 0, block[good] > 0)
    elif dtype is FinalDtype.INT8:
        constant = steps == 0  # its one step is as wide as the first that comes to mind
        assert (np.abs(back - block)[good][:, ~constant] <= steps[~constant] * 0.51).all()
    else:
        rtol, atol = (0.001, 1e-7) if dtype is FinalDtype.FLOAT16 else (0, 0)
        np.testing.assert_allclose(back[good], block[good], rtol=rtol, atol=atol)


def test_what_float16_cannot_hold() -> None:
    """A number too large for float16 is refused with its row, also beside a row that is NaN throughout."""
    block = np.ones((4, 3), dtype=np.float32)
    block[1], block[2, 1] = np.nan, 70_000
    with pytest.raises(TooLargeError, match="70000") as raised:
        Numbers(FinalDtype.FLOAT16, 3).of(block, np.array([1]), None)
    assert raised.value.row == 2


def test_every_form_is_known_everywhere() -> None:
    """A format or a key that was forgotten somewhere is named: registry, manifest, documentation."""
    assert set(FORMATS) == set(FinalFormat)
    assert len({each.suffix for each in FORMATS.values()}) == len(FORMATS)
    assert {str(each) for each in FinalFormat} == {each.suffix for each in FORMATS.values()}
    documented = Path(__file__).parents[2].joinpath("docs/reference/config.md").read_text()
    for key in FORM_KEYS:
        assert key in OutputConfig.model_fields
        assert f"`outputs.NAME.{key}`" in documented
    for value in (*FinalFormat, *FinalDtype):
        assert f"`{value}`" in documented


def read_back(layout: OutputLayout, form: Form, rows: int, dimension: int) -> np.ndarray:
    """All rows of a final, as any reader would get them."""
    numbers = Numbers(form.dtype, dimension)
    found = []
    for part in parts_of(place_of(layout, form), rows, form):
        if form.format is FinalFormat.NPY:
            found.append(np.load(part.path, mmap_mode="r", allow_pickle=False))
        digest = hashlib.sha256()
        found_here = [block for block, _ in FORMATS[form.format].read(part.path, part.rows, numbers, digest)]
        assert digest.hexdigest() == hashlib.sha256(part.path.read_bytes()).hexdigest()
        if form.format is FinalFormat.NPY:
            np.testing.assert_array_equal(found[-1], np.concatenate(found_here))
        else:
            found.append(np.concatenate(found_here))
    return np.concatenate(found)


@pytest.mark.parametrize("format", FORMATS_HERE)
@pytest.mark.parametrize("dtype", list(FinalDtype))
@pytest.mark.parametrize("shards", [None, 3])
def test_a_form_of_the_chunks_and_of_a_finished_final(
    format: FinalFormat,  # noqa: A002 - as the key is called
    dtype: FinalDtype,
    shards: int | None,
) -> None:
    """Chunks joined into a form, and a finished float32 final made into it, give the same files; verify agrees."""
    form, notes = Form(shards, format, dtype), []
    with assembled(ROWS, 3, 2) as (ledger, table, right):
        layout, numbers = ledger.layout, Numbers(dtype, DIMENSION)
        final = assemble.assemble(ledger, table, lambda: None, form)
        ranges = np.array([right.min(axis=0), right.max(axis=0)])
        expected = numbers.of(right, NONE, ranges)
        np.testing.assert_array_equal(read_back(layout, form, len(ROWS), DIMENSION), expected)
        joined = [stamp.digest for stamp in final.stamps]
        assert not any(path.exists() for path in all_partials(layout))
        if final.ranges is not None:
            np.testing.assert_array_equal(final.ranges, ranges)

        whole = assemble.assemble(ledger, table, lambda: None)
        assert not list(layout.workdir.glob("out.parquet*"))
        manifest = {
            "rows": len(ROWS),
            "dimension": DIMENSION,
            "fingerprint": "f",
            "quarantined": [],
            "zero_rows": 0,
            **describe_files(layout, Form(), len(ROWS), whole.stamps, None),
        }
        publish_manifest(layout, manifest, whole.stamps)
        made = keep_finished(layout, "f", form, lambda event: notes.append(event), lambda: None)
        assert made is not None
        assert form_of(made) == form
        assert [part["digest"] for part in made.get("shards", [made])] == [f"sha256:{each}" for each in joined]
        assert layout.final.exists() == (place_of(layout, form) == layout.final)
        assert (ranges_of(made) is not None) == layout.ranges.exists() == (dtype is FinalDtype.INT8)
        assert [finding for finding in _final(layout) if finding.problem] == []
        assert read_finished(layout) == made
        assert len(notes) == (form != Form())


def finished(dtype: FinalDtype) -> Iterator[OutputLayout]:
    """A finished output in that type, without chunks."""
    with assembled(ROWS, 3, 2) as (ledger, table, _):
        form = Form(dtype=dtype)
        final = assemble.assemble(ledger, table, lambda: None, form)
        manifest = {
            "rows": len(ROWS),
            "dimension": DIMENSION,
            "fingerprint": "f",
            "quarantined": [],
            "zero_rows": 0,
            **describe_files(ledger.layout, form, len(ROWS), final.stamps, final.ranges),
        }
        write_sides(ledger.layout, manifest)
        publish_manifest(ledger.layout, manifest, final.stamps)
        yield ledger.layout


@pytest.fixture
def of_int8() -> Iterator[OutputLayout]:
    """A finished output in int8."""
    yield from finished(FinalDtype.INT8)


@pytest.mark.parametrize("asked", [FinalDtype.FLOAT32, FinalDtype.FLOAT16, FinalDtype.UBINARY])
def test_what_is_rounded_is_not_made_exact(of_int8: OutputLayout, asked: FinalDtype) -> None:
    """Of a final in int8, without its chunks, no other type is made: refused in words, and all stays as it is."""
    before = read_finished(of_int8)
    with pytest.raises(Halt) as raised:
        keep_finished(of_int8, "f", Form(dtype=asked), lambda _: None, lambda: None)
    assert raised.value.code == ExitCode.CONFIG
    assert f"complete in int8, and {asked} cannot be made of that" in str(raised.value)
    assert read_finished(of_int8) == before
    assert keep_finished(of_int8, "f", Form(2, dtype=FinalDtype.INT8), lambda _: None, lambda: None) is not None


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"mine")])
def test_lost_ranges_are_made_again(of_int8: OutputLayout, damage: object) -> None:
    """Ranges that are gone or altered are named by verify and written again from the manifest; nothing is encoded."""
    right = of_int8.ranges.read_bytes()
    assert callable(damage)
    damage(of_int8.ranges)
    assert [finding.path for finding in _final(of_int8) if finding.problem] == [of_int8.ranges]
    assert keep_finished(of_int8, "f", Form(dtype=FinalDtype.INT8), lambda _: None, lambda: None) is not None
    assert of_int8.ranges.read_bytes() == right
    np.testing.assert_array_equal(np.load(of_int8.ranges).shape, (2, DIMENSION))
