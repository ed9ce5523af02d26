"""`chunkvisor encode`: one file without a config, all or nothing, resumable by the same command."""

import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drivers.zygote import umask
from harness import ENCODERS, SOAK_SEED, Ended, Workplace, expected, sweep
from scripted_workplace import ScriptedWorkplace

TEXTS = ["one", "two", "three", "one", "four"]


class Desk(Workplace):
    """A place in which `encode` is called."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.out = folder / "vectors" / "out.npy"
        self.state = self.out.with_name("out.npy.chunkvisor")

    def encode(self, *arguments: str, encoder: str = "good:make") -> Ended:
        """The command; the encoder comes from tests/encoders."""
        model = (
            "--model",
            "m",
            "--encoder",
            encoder,
            "--device",
            "cpu",
            "--set",
            "workers.standby=0",
        )
        return self.call("encode", "rows.jsonl", *model, "-o", "vectors/out.npy", *arguments)

    def result(self) -> np.ndarray:
        """The file made."""
        return np.load(self.out, allow_pickle=False)

    def manifest(self, _: str = "") -> dict[str, Any]:
        """Its description."""
        return json.loads(self.out.with_suffix(".json").read_text())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A place with a source of five texts; it is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join([str(ENCODERS), *filter(None, [os.environ.get("PYTHONPATH")])]),
    )
    place = Desk(tmp_path)
    place.write_source(TEXTS)
    return place


def test_one_file(desk: Desk) -> None:
    """File and manifest appear, their mode by the umask, the state is gone; the same command again
    finds it done.
    """
    ended = desk.encode("--column", "text", "--chunk-size", "2")
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(desk.result(), expected(TEXTS))
    assert (desk.manifest()["rows"], desk.manifest()["distinct_texts"]) == (5, 4)
    assert sorted(path.name for path in desk.out.parent.iterdir()) == ["out.json", "out.npy"]
    ended = desk.call("status", str(desk.state))
    gone = (
        f"chunkvisor: {desk.state} no longer exists: `chunkvisor encode` finished {desk.out} and "
        f"removed its work"
    )
    assert (ended.returncode, ended.stderr.splitlines()[0]) == (78, f"{gone} folder")
    for path in (desk.out, desk.out.with_suffix(".json")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask()
    ended = desk.encode("--column", "text")
    assert (ended.returncode, "complete already" in ended.stderr) == (0, True), ended.stderr
    assert "run " not in ended.stderr


def test_another_file_is_neither_the_answer_nor_replaced(desk: Desk) -> None:
    """Other settings and another source are refused by name, unless it is to begin anew."""
    assert desk.encode("--column", "text").returncode == 0
    before = desk.out.read_bytes()
    desk.write_source(["else", *TEXTS[1:]])
    arguments = ("--column", "text", "--normalize")
    ended = desk.encode(*arguments)
    assert (ended.returncode, desk.out.read_bytes()) == (78, before), ended.stderr
    assert "encode.normalize: false before, true now" in ended.stderr
    assert "source: its files have changed" in ended.stderr
    assert f"{len(TEXTS)} rows, but it was made differently" in ended.stderr
    ended = desk.encode(*arguments, "--from-scratch")
    assert ended.returncode == 0, ended.stderr
    assert len(desk.result()) == len(TEXTS)


@pytest.mark.parametrize("how", ["strange", "changed"])
def test_a_file_that_it_did_not_make_is_kept(desk: Desk, how: str) -> None:
    """A file that is not what `encode` made is never replaced unasked, one that it never made by no
    option.
    """
    if how == "changed":
        assert desk.encode("--column", "text").returncode == 0
    desk.out.parent.mkdir(exist_ok=True)
    desk.out.write_bytes(b"precious")
    for more in ([], ["--from-scratch"] * (how == "strange")):
        ended = desk.encode("--column", "text", *more)
        assert (ended.returncode, str(desk.out) in ended.stderr) == (78, True), ended.stderr
        assert desk.out.read_bytes() == b"precious"


def test_same_command_goes_on(desk: Desk) -> None:
    """What a failed call has done is there for the next; nothing appears at the final names before."""
    plan = '{plan: {embeddings/1: "segfault@encode"}, times: null}'
    arguments = (
        "--column",
        "text",
        "--chunk-size",
        "2",
        "--set",
        "recovery.on_bad_row=fail",
        "--set",
    )
    ended = desk.encode(*arguments, f"model.kwargs={plan}", encoder="misbehaving:make")
    assert ended.returncode == 78, ended.stderr
    assert not desk.out.exists()
    status = desk.call("status", str(desk.state), "--json")
    assert json.loads(status.stdout)["outputs"]["embeddings"]["chunks_done"] == 1
    desk.source.touch()  # read anew, and found to be the same
    ended = desk.encode(
        *arguments, f"model.kwargs={plan}", "--set", "env.BEHAVE='1'", encoder="misbehaving:make"
    )
    assert ended.returncode == 0, ended.stderr
    assert ", 1 done" in ended.stderr
    np.testing.assert_array_equal(desk.result(), expected(TEXTS))
    assert not desk.state.exists()


def test_what_is_kept(desk: Desk) -> None:
    """With --keep the state says where the file is, and `verify` takes state, file and manifest."""
    assert desk.encode("--column", "text", "--keep").returncode == 0
    screen = desk.call("status", str(desk.state)).stdout
    assert screen.startswith("complete\n")
    assert f"the file is {desk.out}" in screen
    for given in (desk.state, desk.out, desk.out.with_suffix(".json")):
        assert "all are intact" in desk.call("verify", str(given)).stdout
    refused = desk.call("report", str(desk.out))
    assert (refused.returncode, "cannot be read as UTF-8" in refused.stderr) == (78, True)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_anywhere(tmp_path: Path, when: str) -> None:
    """Killed at any change of a name, the same command goes on; no text is encoded twice, and
    nothing is left over.
    """
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS)
    targets = ("pathlib:Path.rename", "pathlib:Path.replace", "pathlib:Path.unlink")
    model = "--model m --encoder scripted:make --device cpu --set workers.standby=0"
    told = sweep(
        "each",
        when,
        place.folder,
        tmp_path / "scratch",
        *targets,
        "shutil:rmtree",
        command=f"encode {place.source} --column text --chunk-size 2 {model} -o out/v.npy",
        share="1:" if SOAK_SEED else "3:a",
    )
    assert len(told) > 3
    for line in told:
        assert line["returncode"] == 0, (line["call"], line["stderr"])
        left = ScriptedWorkplace(Path(line["folder"]))
        folder = left.folder / "out"
        np.testing.assert_array_equal(np.load(folder / "v.npy"), expected(TEXTS))
        assert sorted(path.name for path in folder.iterdir()) == ["v.json", "v.npy"], line
        assert left.here("verify", str(folder / "v.npy")).returncode == 0, line["call"]
        assert len(left.calls()) <= 3, line["call"]


def test_quarantine_and_retry(desk: Desk) -> None:
    """Rows without a vector: exit 3 and NaN; after a mend, `retry` and the same command give the
    whole file.
    """
    desk.write_source(["one", "bad", "two"])
    mine = desk.state / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    arguments = ("--column", "text", "--set", f"model.kwargs.mended={desk.folder / 'mended'}")
    ended = desk.encode(*arguments, encoder="picky:make")
    assert ended.returncode == 3, ended.stderr
    assert (
        f"the command, to run it again: cd {desk.folder} && chunkvisor encode rows.jsonl "
        in ended.stderr
    )
    assert np.isnan(desk.result()[1]).all()
    assert [each["row"] for each in desk.manifest()["quarantined"]] == [1]
    bad = desk.out.with_suffix(".quarantined.jsonl")
    assert [json.loads(line)["row"] for line in bad.read_text().splitlines()] == [1]
    assert f"{bad} lists such rows" in ended.stderr
    assert desk.encode(*arguments, encoder="picky:make").returncode == 3
    (desk.folder / "mended").touch()
    assert desk.call("retry", str(desk.state)).returncode == 0
    verified = desk.call("verify", str(desk.state))
    assert "embeddings is not complete: 2 of 3 rows" in verified.stdout, verified
    ended = desk.encode(*arguments, encoder="picky:make")
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(desk.result(), expected(["one", "bad", "two"]))
    assert not bad.exists()
    assert list(desk.state.iterdir()) == [mine], "what else is in that folder stays there"


def test_a_state_on_another_disk_is_refused(desk: Desk) -> None:
    """No rename could put the file in its place."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if Path(other).stat().st_dev == desk.folder.stat().st_dev:
            pytest.skip("there is one disk only")
        ended = desk.encode("--column", "text", "--workdir", other)
        assert (ended.returncode, f"{other} is not on the disk of" in ended.stderr) == (78, True), (
            ended.stderr
        )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--column", "text", "-o", "out.bin"), 2, "must end in .npy"),
        (("--column", "text", "--template", "{text}"), 78, "keep one of them"),
        ((), 78, "One of column, template and sql is needed"),
        (("--column", "text", "--set", "chunk.sise=3"), 78, "chunk.sise: unknown key"),
    ],
)
def test_wrong_calls(desk: Desk, arguments: tuple[str, ...], code: int, words: str) -> None:
    """What is wrong is said in the config's words, before anything is made."""
    ended = desk.encode(*arguments)
    assert (ended.returncode, words in ended.stderr) == (code, True), ended.stderr
    assert not desk.out.exists()
