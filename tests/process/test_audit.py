"""`audit` encodes finished rows again, and finds vectors that are finite, complete and wrong."""

import re
import shutil

import pytest

from harness import Workplace, contents

TEXTS = (
    [f"text {number}" for number in range(9)]
    + ["change"]
    + [f"text {number}" for number in range(10, 20)]
)


@pytest.fixture
def drifted(workplace: Workplace) -> Workplace:
    """A finished run whose encoder was another one from its second chunk on; it still is."""
    workplace.write_source(TEXTS)
    changed = workplace.folder / "changed"
    workplace.write_config(
        "drifting:make", model__kwargs={"changed": str(changed)}, chunk__keep=True
    )
    workplace.ends(0)
    assert changed.exists()
    return workplace


def test_vectors_of_a_model_that_changed_half_way_are_found(drifted: Workplace) -> None:
    """Each row of one half differs and is named with its place, with code 3; nothing changes in the
    workdir, not even a lost record: the lock is not held.
    """
    (drifted.hidden / "outputs/out/final.json").unlink()
    before = contents(drifted.workdir)

    ended = drifted.does("audit", "--rows", "20", code=3)
    assert {int(row) for row in re.findall(r"^  row (\d+) ", ended.stdout, re.MULTILINE)} == set(
        range(10)
    )
    assert "10 of 20 vectors" in ended.stderr
    assert f"  row 3 ({drifted.source}:4): difference" in ended.stdout
    assert contents(drifted.workdir) == before


def test_quarantined_rows_are_left_out(workplace: Workplace) -> None:
    """They have no vector to compare; of the others as many as were asked for are, and a sound run
    passes.
    """
    workplace.prepare(["bad one", *TEXTS[:9]], "deadly:make")
    workplace.ends(3)

    ended = workplace.does("audit", "--rows", "7")
    assert ended.stdout.startswith("out: 7 rows encoded again; 0 differ")


def test_what_cannot_be_audited_is_said(drifted: Workplace) -> None:
    """Texts that are removed, and a workdir in which nothing is finished, are 78, with the remedy."""
    drifted.does("clean")
    ended = drifted.does("audit", code=78)
    assert "the texts of output out are not in the workdir" in ended.stderr
    assert "`chunkvisor run CONFIG --from-scratch` makes them again" in ended.stderr
    shutil.rmtree(drifted.hidden / "outputs/out/0001")
    assert "is finished" in drifted.does("audit", code=78).stderr
