"""Which vectors are cut from others, and in which order outputs are encoded for that."""

import numpy as np
import pytest

from chunkvisor.assemble import cutrows
from chunkvisor.assemble.cutrows import CutRows
from chunkvisor.decide.cut import Cut, Shape, Wanted, cut_between, in_order

FULL, UNIT = Shape(), Shape(normalize=True)
SHORT, SHORT_UNIT = Shape(128), Shape(128, normalize=True)
SHORTER, SHORTER_UNIT = Shape(64), Shape(64, normalize=True)


@pytest.mark.parametrize(
    ("there", "wanted", "cut"),
    [
        (FULL, FULL, Cut()),
        (SHORT_UNIT, SHORT_UNIT, Cut()),
        (FULL, UNIT, Cut(normalize=True)),
        (FULL, SHORT, Cut(128)),
        (FULL, SHORT_UNIT, Cut(128, normalize=True)),
        (UNIT, SHORT_UNIT, Cut(128, normalize=True)),
        (SHORT, SHORTER, Cut(64)),
        (SHORT, SHORT_UNIT, Cut(normalize=True)),
        (SHORT_UNIT, SHORTER_UNIT, Cut(64, normalize=True)),
        # The length that a vector had before it was normalized is gone.
        (UNIT, FULL, None),
        (UNIT, SHORT, None),
        (SHORT_UNIT, SHORT, None),
        # So are numbers that were left out; 128 may be all of them, but nobody knows that here.
        (SHORT, FULL, None),
        (SHORT, UNIT, None),
        (SHORTER, SHORT, None),
        (SHORTER_UNIT, SHORT_UNIT, None),
    ],
)
def test_what_can_be_cut(there: Shape, wanted: Shape, cut: Cut | None) -> None:
    """Numbers can be left out and lengths be made 1, and not the other way round."""
    assert cut_between(there, wanted) == cut


@pytest.mark.parametrize(
    ("cut", "dtype", "exact"),
    [
        (Cut(128), "bfloat16", True),
        (Cut(128), None, True),
        (Cut(), "float16", True),
        (Cut(128, normalize=True), "float32", True),
        (Cut(normalize=True), "float32", True),
        (Cut(128, normalize=True), "bfloat16", False),
        (Cut(normalize=True), "float16", False),
        (Cut(normalize=True), "", False),
        (Cut(normalize=True), None, False),
    ],
)
def test_dtypes(cut: Cut, dtype: str | None, exact: bool) -> None:
    """Leaving numbers out is exact in every dtype; a worker normalizes in the model's, which has to be float32."""
    assert cut.is_exact(dtype) is exact


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (Cut(), ""),
        (Cut(1024), "cut to 1,024 numbers"),
        (Cut(normalize=True), "normalized"),
        (Cut(128, normalize=True), "cut to 128 numbers and normalized"),
    ],
)
def test_words(cut: Cut, words: str) -> None:
    """A cut says what it does, and is false where it does nothing."""
    assert (str(cut), bool(cut)) == (words, bool(words))


A, B = (Wanted("model a", FULL), Wanted("model b", FULL))


@pytest.mark.parametrize(
    ("outputs", "order"),
    [
        ([], []),
        ([A, B, A], [0, 1, 2]),
        ([Wanted("a", SHORT_UNIT), Wanted("a", FULL)], [1, 0]),
        ([Wanted("a", SHORT_UNIT), Wanted("b", FULL)], [0, 1]),
        ([Wanted("a", SHORT_UNIT), Wanted("a", SHORT), Wanted("a", FULL)], [2, 1, 0]),
        ([Wanted("a", UNIT), Wanted("b", FULL), Wanted("a", SHORT), Wanted("a", FULL)], [1, 3, 0, 2]),
        # Neither can be cut from the other.
        ([Wanted("a", UNIT), Wanted("a", SHORT)], [0, 1]),
        # What is rounded gives nothing, so it comes after what has the same vectors as they are.
        ([Wanted("a", FULL, gives=False), Wanted("a", FULL)], [1, 0]),
        ([Wanted("a", FULL, gives=False), Wanted("a", SHORT)], [0, 1]),
        ([Wanted("a", SHORT, gives=False), Wanted("a", FULL, gives=False)], [0, 1]),
    ],
)
def test_order(outputs: list[Wanted], order: list[int]) -> None:
    """What serves others is encoded before them; everything else stays in the order of the config."""
    assert in_order(outputs) == order


class Rows:
    """Vectors by number, from memory."""

    def __init__(self, vectors: np.ndarray) -> None:
        self._vectors = vectors
        self.dimension = vectors.shape[1]

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Those rows, in a copy."""
        return self._vectors[rows].copy()


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
@pytest.mark.parametrize("cut", [Cut(48), Cut(normalize=True), Cut(48, normalize=True)])
def test_arithmetic(cut: Cut, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are cut are within 1e-6 of those of float64, also where they were normalized before."""
    monkeypatch.setattr(cutrows, "BLOCK_BYTES", 200 << 10)  # several blocks
    random = np.random.default_rng(1)
    vectors = (scale * random.standard_normal((300, 1000))).astype(np.float32)
    unit = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    exact = vectors[:, : cut.dimension].astype(np.float64)
    if cut.normalize:
        exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    rows = random.permutation(300)
    for source in (vectors, unit) if cut.normalize else (vectors,):
        reader = CutRows(Rows(source), cut)
        found = reader.read(rows)
        assert found.shape == (300, reader.dimension)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, exact[rows], rtol=0, atol=1e-6 if cut.normalize else 0)


def test_rows_without_length() -> None:
    """A row of zeros stays one, as in a worker."""
    reader = CutRows(Rows(np.zeros((2, 8), dtype=np.float32)), Cut(4, normalize=True))
    np.testing.assert_array_equal(reader.read(np.array([1, 0])), np.zeros((2, 4)))
