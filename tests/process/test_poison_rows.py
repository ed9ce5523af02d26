"""Texts that no worker survives: they are found, every other row is right, and a mend costs no more
than themselves.
"""

import re
import shlex
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkvisor
from chunkvisor.outputs import finish, publish
from chunkvisor.store.layout import Layout
from chunkvisor.store.ledger import Parts
from chunkvisor.store.reuse import ledger_of
from damaged import flip
from harness import SOAK_SEED, Ended, expected, halts, local_engine_only
from killed import killed_anywhere
from scripted_workplace import ScriptedWorkplace


def parts_folder(place: ScriptedWorkplace) -> Path:
    """Where the parts of chunks lie."""
    return place.hidden / "outputs/out/0001" / "parts"


def quarantines(
    place: ScriptedWorkplace, texts: list[str], rows: list[int], *arguments: str
) -> Ended:
    """Run it: just these rows are NaN and in the manifest, with file and line; all other rows are
    right.
    """
    ended = place.gives(texts, *arguments, bad=rows)
    check_quarantine(place, rows)
    return ended


def check_quarantine(place: ScriptedWorkplace, rows: list[int]) -> None:
    """Just these rows are in the manifest, with file and line and reason; no part is left."""
    listed = place.manifest()["quarantined"]
    assert [Path(each["place"]).name for each in listed] == [
        f"rows.jsonl:{row + 1}" for row in rows
    ]
    assert all(each["reason"] for each in listed)
    assert not list(parts_folder(place).glob("*/*.npy"))


# ---------------------------------------------------------------------------------------------- a thousand rows

CHUNK = 100
SEGFAULT, ASSERT, VALUE_ERROR, NAN = 137, 333, 512, 871
AGAIN = 990
"""A row with the same text as row SEGFAULT."""
POISON = {SEGFAULT: "crash!", ASSERT: "device_assert!", VALUE_ERROR: "value_error!", NAN: "nan!"}
THOUSAND = [f"t{SEGFAULT if row == AGAIN else row}" for row in range(1000)]


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> tuple[ScriptedWorkplace, Ended]:
    """A finished run over a thousand rows, four of whose texts are bad, each in its own way."""
    place = ScriptedWorkplace.make(
        tmp_path_factory.mktemp("thousand") / "place",
        THOUSAND,
        chunk__size=CHUNK,
        workers={"start": "auto", "standby": 0, "per_device": 2},
    )
    for row, fault in POISON.items():
        place.lay(THOUSAND[row], fault)
    return place, quarantines(place, THOUSAND, sorted([*POISON, AGAIN]))


def test_poison_rows_are_found(thousand: tuple[ScriptedWorkplace, Ended]) -> None:
    """A segfault, a ValueError, a NaN and a device-side assert are told by row; so is the second
    row of a bad text.
    """
    place, ended = thousand
    assert "finished, but 5 rows could not be encoded" in ended.stderr
    assert "chunkvisor retry" in ended.stderr
    outcomes = {each["row"]: each["outcome"] for each in place.manifest()["quarantined"]}
    crashed = dict.fromkeys((SEGFAULT, AGAIN, VALUE_ERROR), "crashed")
    assert outcomes == {**crashed, ASSERT: "device_fault", NAN: "bad_output"}
    assert place.progress()["quarantined"] == 5
    chunks = re.findall(r"out chunk (\d+): looking for the text that fails", ended.stderr)
    assert sorted(chunks) == ["1", "3", "5", "8"], (
        "the steps of a search are read from one line of the view"
    )


def test_retry_computes_the_bad_texts_only(
    thousand: tuple[ScriptedWorkplace, Ended], tmp_path: Path
) -> None:
    """After `retry`, mended texts are computed and nothing else; what is bad still stays in
    quarantine.
    """
    place = thousand[0].copy(tmp_path / "place")
    place.lift(*(THOUSAND[row] for row in (SEGFAULT, ASSERT, VALUE_ERROR)))
    calls = len(place.calls())
    done = len(place.encoded())
    assert "4 texts to try again" in place.does("retry").stdout
    status = place.does("status").stdout
    assert status.startswith("stopped: the next run tries the rows without a vector again\n")
    assert "NaN" not in status
    quarantines(place, THOUSAND, [NAN])
    computed = Counter(place.encoded()[done:])
    control = computed.keys() - {f"t{row}" for row in POISON}
    assert len(control) <= 1  # a text that is known to be good, before one is blamed again
    # A vector that is bad again is looked at once more, after a canary.
    assert computed - Counter(control) == {f"t{row}": 2 if row == NAN else 1 for row in POISON}

    place.lift(THOUSAND[NAN])
    place.does("retry")
    place.gives(THOUSAND)
    assert place.calls()[-1] == [f"t{NAN}"]
    assert len(place.calls()) == calls + 6 + len(control)
    nothing = "nothing to try again: every row that is done has its vector\n"
    assert place.does("retry").stdout == nothing
    place.ends(0)
    assert not list(place.workdir.glob("*.aside*"))  # the earlier final files were ours


# ---------------------------------------------------------------------------------------------------- small runs

FEW = [f"t{number}" for number in range(8)]
"""Two chunks of four."""


def few(folder: Path, texts: list[str] = FEW, **changes: Any) -> ScriptedWorkplace:
    """Chunks of four texts; a chunk that fails is taken apart at once."""
    return ScriptedWorkplace.make(
        folder, texts, **{"chunk__size": 4, "recovery__attempts": 1, **changes}
    )


def test_nan_that_goes_away_alone_is_mended(tmp_path: Path) -> None:
    """A vector that is bad only in company is computed alone, and the row is not in quarantine."""
    place = few(tmp_path)
    place.lay("t5", "nan_beside!")
    place.gives(FEW)
    assert place.calls()[-1] == ["t5"]
    assert len(place.calls()) == 4  # with a canary


def test_on_bad_row_fail(tmp_path: Path) -> None:
    """`recovery.on_bad_row: fail` ends the run at the first bad text with 78, and names file and
    line.
    """
    place = few(tmp_path, recovery__on_bad_row="fail")
    place.lay("t5", "value_error!")
    ended = place.ends(78)
    last_words = ended.stderr[ended.stderr.index("chunkvisor: ") :]
    assert f"{place.source}:6" in last_words
    assert "this text is beyond me" in last_words
    assert "on_bad_row: quarantine" in last_words
    assert not place.final.exists()
    quarantines(place, FEW, [5], "--set", "recovery.on_bad_row=quarantine")


def test_too_many_bad_rows(tmp_path: Path) -> None:
    """More bad texts than `recovery.max_bad_rows` end the run with 78; with a higher limit it goes
    on from there.
    """
    place = few(tmp_path, recovery__max_bad_rows=2)
    place.lay(("t1", "t5", "t6"), "nan!")
    ended = place.ends(78)
    assert "3 texts cannot be encoded" in ended.stderr
    assert "recovery.max_bad_rows is 2" in ended.stderr
    share = "2 of the 4 texts of chunk 1 have bad vectors"
    assert f"{share}: its vectors have NaN or infinity\n" in ended.stderr
    calls = len(place.calls())
    quarantines(place, FEW, [1, 5, 6], "--set", "recovery.max_bad_rows=3")
    assert (
        len(place.calls()) <= calls + 4
    )  # a canary, the two of its chunk together, and each alone


def test_limit_counts_texts(tmp_path: Path) -> None:
    """One bad text that stands in three rows is one, and a blank one is named with a `where` that
    works as printed.
    """
    rows = ["t0", " ", " ", "t2", " ", "t3"]
    place = few(tmp_path, rows, recovery__max_bad_rows=1)
    place.lay(" ", "nan!")
    ended = quarantines(place, rows, [1, 2, 4])
    assert "the text is blank" in ended.stderr
    (printed,) = set(re.findall(r"`(--set [^`]*)` leaves such rows out", ended.stderr))
    place.gives(["t0", "t2", "t3"], "--update", *shlex.split(printed))


def test_every_text_is_bad(tmp_path: Path) -> None:
    """Where no text can be encoded there is no dimension and no file: the run ends with 78, and so
    does the next.
    """
    place = few(tmp_path, ["t0", "t1"])
    place.lay(("t0", "t1"), "value_error!")
    for _ in range(2):
        ended = place.ends(78)
        assert "no text has been encoded so far (0 of 2)" in ended.stderr
        assert "this text is beyond me" in ended.stderr
    place.lift("t1")
    quarantines(place, ["t0", "t1"], [0])


def test_parts_that_are_given_up(tmp_path: Path) -> None:
    """Parts that fail for no text's sake are given up for this run; the rest of their chunk is done
    all the same.
    """
    place = few(tmp_path)
    place.lay("t0", "crash!")
    place.lay(("t1", "t3"), "damage!")
    assert "not complete: out chunk 0 failed in every try" in place.ends(75).stderr
    assert place.progress()["chunks_done"] == 1
    before = len(place.encoded())
    place.lift("t1", "t3")
    quarantines(place, FEW, [0])
    assert "t0" not in place.encoded()[before:]


def test_run_in_which_everything_fails(tmp_path: Path) -> None:
    """If every worker crashes it is not the texts: dozens of attempts, then exit 69 and the last
    record in words.
    """
    texts = [f"t{number}" for number in range(64)]
    place = few(tmp_path, texts, chunk__size=64, recovery__attempts=3)
    place.lay(texts, "crash!")
    ended = place.ends(69)
    assert len(place.named("attempt_failed", "part_failed")) <= 64
    assert not place.named("quarantined")
    what, why, remedy, *more = ended.stderr[ended.stderr.index("chunkvisor: ") :].splitlines()
    (log,) = [line for line in more if "log: " in line]
    assert "no text has been encoded so far" in what
    assert "Segmentation fault" in why
    assert "run the same command again" in remedy
    assert Path(log.partition("log: ")[2].partition(" (")[0]).name == "worker.log"


# ------------------------------------------------------------------------------------------------ killed, damaged


@pytest.mark.soak
@local_engine_only
def test_killed_while_taking_apart(tmp_path: Path) -> None:
    """Killed after an event of a run that takes chunks apart, the next run has the same bytes and
    quarantine.
    """
    template = few(tmp_path / "template")
    template.lay("t1", "value_error!")
    template.lay("t6", "nan!")
    whole = template.copy(tmp_path / "whole")
    quarantines(whole, FEW, [1, 6])
    # Not by the attempt: bad texts fail anew in each run.
    keys: dict[str, Any] = {"keys": "output chunk start row", "most": 1000 if SOAK_SEED else 3}
    told = "chunkvisor.events.journal:Journal.write"
    for place in killed_anywhere(template, tmp_path / "each", "after", "9:a", told, code=3, **keys):
        check_quarantine(place, [1, 6])
        assert place.final.read_bytes() == whole.final.read_bytes()


@local_engine_only
def test_killed_after_parts_came_out_of_order(tmp_path: Path) -> None:
    """Of a chunk whose last texts were stored before its first ones, the next run goes on with what
    is missing.
    """
    place = few(tmp_path, FEW[:4])
    place.lay("t1", "nan_beside")
    place.lay("t2", "nan kill_both nan")
    assert place.apart().returncode == -signal.SIGKILL
    place.gives(FEW[:4])


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> ScriptedWorkplace:
    """The first chunk is committed with a bad text; of the second, parts and a bad text are
    known.
    """
    place = few(tmp_path_factory.mktemp("halfway") / "place")
    place.lay(("t1", "t5"), "value_error!")
    place.lay("t6", "damage!")
    place.ends(75)
    names = {path.name for path in (parts_folder(place) / "000001").iterdir()}
    assert "index.json" in names
    assert len(names) == 2
    place.lift("t6")
    return place


@pytest.mark.parametrize("damage", [flip, Path.unlink])
@pytest.mark.parametrize(
    "name", ["parts/000001/index.json", "parts/000001/*.npy", "parts/000000/index.json"]
)
def test_damaged(
    halfway: ScriptedWorkplace, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """What is damaged is computed again, and the result is the same."""
    place = halfway.copy(tmp_path / "place")
    (path,) = (place.hidden / "outputs/out/0001").glob(name)
    damage(path)
    quarantines(place, FEW, [1, 5])


@local_engine_only  # it damages the part from inside the run
def test_part_damaged_while_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that turns out damaged when its chunk is put together is computed again by the same
    run.
    """
    place = few(tmp_path, FEW[:4])
    place.lay("t3", "value_error!")
    forget_damaged = Parts.forget_damaged
    damaged = list[int]()

    def damage_first(parts: Parts, dimension: int) -> bool:
        if not damaged:
            damaged.extend(next(part.texts for part in parts._index.parts if 1 in part.texts))
            (path,) = parts_folder(place).glob("*/vectors.npy")
            flip(path)
        return forget_damaged(parts, dimension)

    monkeypatch.setattr(Parts, "forget_damaged", damage_first)
    ended = quarantines(place, FEW[:4], [3])
    assert "chunk 0: stored vectors are damaged, and will be computed again" in ended.stderr
    again = {text for call in place.calls()[-2:] for text in call}  # the first of them alone
    assert again == {f"t{text}" for text in damaged}


# ------------------------------------------------------------------------------- many bad vectors


@pytest.mark.parametrize("bad", [1, 333])
def test_bad_vectors_are_looked_at_once_more_together(tmp_path: Path, bad: int) -> None:
    """Bad vectors kill no worker: however many there are, one more process looks at them, each
    alone in its batch.
    """
    texts = [f"t{row}" for row in range(1000)]
    place = few(tmp_path, texts, chunk__size=1000, recovery={"max_bad_rows": 1000})
    rows = [row for row in range(1000) if row * bad // 1000 != (row + 1) * bad // 1000]
    place.lay((texts[row] for row in rows), "nan!")
    place.gives(texts, bad=rows)
    assert len(place.named("attempt_started")) <= 3


def test_more_bad_vectors_than_max_bad_rows_end_the_run_at_once(tmp_path: Path) -> None:
    """A model half of whose vectors are bad costs three attempts, and the last words name the
    dtype.
    """
    texts = [f"t{row}" for row in range(1000)]
    place = few(tmp_path, texts, chunk__size=1000)
    place.lay(texts[::2], "nan!")
    ended = place.ends(78)
    assert "500 texts cannot be encoded" in ended.stderr
    assert "500 of the 1,000 texts of chunk 0 have bad vectors" in ended.stderr
    assert "model.dtype float32" in ended.stderr
    assert len(place.named("attempt_started")) <= 3
    assert place.progress()["rows_done"] == 500


# ------------------------------------------------------------------------------- no file, and no word of success


def test_refused_texts_are_tried_again(tmp_path: Path) -> None:
    """Where no text had a vector, each run says so with 78, with a combination too, and a mended
    encoder completes.
    """
    texts = ["t0", "t1", "t2"]
    other = {"source": "rows.jsonl", "template": "{text}!"}
    both = {"outputs__other": other, "combine": {"both": ["out", "other"]}}
    place = few(tmp_path, texts, **both, recovery__attempts=3)
    place.lay(texts, "bad_input!")
    for _ in range(3):
        ended = place.ends(78)
        assert "none of its texts can be encoded" in ended.stderr
        assert "retry" not in ended.stderr
    with halts(78):
        chunkvisor.run(place.config_path, progress=False)
    place.lift(*texts)
    place.gives(texts)
    assert place.vectors("both").shape == (3, 16)


@pytest.mark.parametrize("committed", [True, False])
def test_facts_are_lost(tmp_path: Path, committed: bool) -> None:
    """Facts that are lost while every text is done come back with a chunk that is computed
    again.
    """
    place = few(tmp_path / "place", FEW[:4])
    place.lay("t1", "value_error!")
    place.lay("t3", "damage!")
    place.ends(75)
    place.lift("t3")
    if committed:
        place.ends(3, "--set", "chunk.keep=true")
        place.final.unlink()
        (place.workdir / "out.json").unlink()
    else:
        # As a run leaves it that is killed when the last text of a chunk has its vector, before the commit.
        layout = Layout(place.workdir).output("out")
        ledger = ledger_of(layout)
        assert ledger is not None
        np.save(tmp_path / "last.npy", expected(["t3"]))
        ledger.parts(0).add_vectors(3, tmp_path / "last.npy", [3])
        assert not ledger.parts(0).pending_texts()
    (place.hidden / "outputs/out/0001/facts.json").unlink()
    quarantines(place, FEW[:4], [1])


def test_success_needs_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose final file is removed while it ends does not say that it is complete."""
    place = few(tmp_path, FEW[:4])
    really = publish.publish

    def publish_in_vain(*found: Any) -> None:
        really(*found)
        place.final.unlink()

    monkeypatch.setattr(finish, "publish", publish_in_vain)
    assert "out has no final file" in place.ends(75).stderr
    monkeypatch.undo()
    place.ends(0)
