"""`chunkvisor encode`: one file without a config, all or nothing, resumable by the same command."""

import json
import stat
import tempfile
from pathlib import Path

import pytest

from drivers.zygote import umask
from harness import ENCODERS, Ended, Workplace, events_in, path_with
from killed import killed_anywhere
from scripted_workplace import ScriptedWorkplace

TEXTS = ["one", "two", "three", "one", "four"]


class Desk(Workplace):
    """A place in which `encode` is called."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.workdir = folder / "vectors"
        self.out = self.workdir / "out.npy"
        self.state = self.out.with_name("out.npy.chunkvisor")

    def encode(
        self,
        *arguments: str,
        code: int = 0,
        encoder: str = "good:make",
        text: str = "--column text",
    ) -> Ended:
        """The command, which has to end with that code; the encoder comes from tests/encoders."""
        model = f"--model m --encoder {encoder} --device cpu --set workers.standby=0 {text}"
        out = ("-o", "vectors/out.npy")
        return self.call("encode", self.source.name, *model.split(), *out, *arguments, code=code)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A place with a source of five texts; it is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", path_with(ENCODERS))
    place = Desk(tmp_path)
    place.write_source(TEXTS)
    return place


def test_one_file(desk: Desk) -> None:
    """File and manifest appear, their mode by the umask, the state is gone; the same command again
    finds it done.
    """
    desk.encode("--chunk-size", "2")
    desk.has(TEXTS)
    assert (desk.manifest()["rows"], desk.manifest()["distinct_texts"]) == (5, 4)
    assert sorted(path.name for path in desk.workdir.iterdir()) == ["out.json", "out.npy"]
    ended = desk.call("status", desk.state, code=78)
    gone = f"chunkvisor: {desk.state} no longer exists: `chunkvisor encode` finished {desk.out} and removed its work"
    assert ended.stderr.splitlines()[0] == f"{gone} folder"
    for path in (desk.out, desk.out.with_suffix(".json")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask()
    ended = desk.encode()
    assert "complete already" in ended.stderr
    assert "run " not in ended.stderr


def test_another_file_is_neither_the_answer_nor_replaced(desk: Desk) -> None:
    """Other settings and another source are refused by name, unless it is to begin anew."""
    desk.encode()
    before = desk.out.read_bytes()
    desk.write_source(["else", *TEXTS[1:]])
    ended = desk.encode("--normalize", code=78)
    assert desk.out.read_bytes() == before
    assert "encode.normalize: false before, true now" in ended.stderr
    assert "source: its files have changed" in ended.stderr
    assert f"{len(TEXTS)} rows, but it was made differently" in ended.stderr
    desk.encode("--normalize", "--from-scratch")
    assert len(desk.vectors()) == len(TEXTS)


@pytest.mark.parametrize("how", ["strange", "changed"])
def test_a_file_that_it_did_not_make_is_kept(desk: Desk, how: str) -> None:
    """A file that is not what `encode` made is never replaced unasked, one that it never made by no
    option.
    """
    if how == "changed":
        desk.encode()
    desk.workdir.mkdir(exist_ok=True)
    desk.out.write_bytes(b"precious")
    for more in ([], ["--from-scratch"] * (how == "strange")):
        assert str(desk.out) in desk.encode(*more, code=78).stderr
        assert desk.out.read_bytes() == b"precious"


def test_same_command_goes_on(desk: Desk) -> None:
    """What a failed call has done is there for the next; nothing appears at the final names
    before.
    """
    plan = '{plan: {embeddings/1: "segfault@encode"}, times: null}'
    options = ["--chunk-size", "2", "--set", "recovery.on_bad_row=fail"]
    options += ["--set", f"model.kwargs={plan}"]
    desk.encode(*options, encoder="misbehaving:make", code=78)
    assert not desk.out.exists()
    status = desk.call("status", desk.state, "--json")
    assert json.loads(status.stdout)["outputs"]["embeddings"]["chunks_done"] == 1
    desk.source.touch()  # read anew, and found to be the same
    ended = desk.encode(*options, "--set", "env.BEHAVE='1'", encoder="misbehaving:make")
    assert ", 1 done" in ended.stderr
    desk.has(TEXTS)
    assert not desk.state.exists()


def test_what_is_kept(desk: Desk) -> None:
    """With --keep the state says where the file is, and `verify` takes state, file and manifest."""
    desk.encode("--keep")
    screen = desk.call("status", desk.state).stdout
    assert screen.startswith("complete\n")
    assert f"the file is {desk.out}" in screen
    for given in (desk.state, desk.out, desk.out.with_suffix(".json")):
        assert "all are intact" in desk.call("verify", given).stdout
    assert "cannot be read as UTF-8" in desk.call("report", desk.out, code=78).stderr


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_anywhere(tmp_path: Path, when: str) -> None:
    """Killed at any change of a name, the same command goes on; no text is encoded twice, and
    nothing is left over.
    """
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS)
    model = "--model m --encoder scripted:make --device cpu --set workers.standby=0"
    options = f"--column text --chunk-size 2 {model} -o out/v.npy"
    command = f"encode {place.source} {options}"
    for left in killed_anywhere(place, tmp_path / "scratch", when, "3:a", command=command):
        left.workdir = left.folder / "out"
        left.has(TEXTS, name="v")
        assert sorted(path.name for path in left.workdir.iterdir()) == ["v.json", "v.npy"]
        left.call("verify", left.workdir / "v.npy", code=0)
        assert len(left.calls()) <= 3


def test_quarantine_and_retry(desk: Desk) -> None:
    """Rows without a vector: exit 3 and NaN; after a mend, `retry` and the same command give the
    whole file.
    """
    desk.write_source(["one", "bad", "two"])
    mine = desk.state / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    mended = ("--set", f"model.kwargs.mended={desk.folder / 'mended'}")
    ended = desk.encode(*mended, encoder="deadly:make", code=3)
    again = f"the command, to run it again: cd {desk.folder} && chunkvisor encode rows.jsonl "
    assert again in ended.stderr
    desk.has(["one", "bad", "two"], [1])
    bad = desk.out.with_suffix(".quarantined.jsonl")
    assert [each["row"] for each in events_in(bad)] == [1]
    assert f"{bad} lists such rows" in ended.stderr
    desk.encode(*mended, encoder="deadly:make", code=3)
    (desk.folder / "mended").touch()
    desk.call("retry", desk.state, code=0)
    verified = desk.call("verify", desk.state)
    assert "embeddings is not complete: 2 of 3 rows" in verified.stdout, verified
    desk.encode(*mended, encoder="deadly:make")
    desk.has(["one", "bad", "two"])
    assert not bad.exists()
    assert list(desk.state.iterdir()) == [mine], "what else is in that folder stays there"


def test_a_state_on_another_disk_is_refused(desk: Desk) -> None:
    """No rename could put the file in its place."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if Path(other).stat().st_dev == desk.folder.stat().st_dev:
            pytest.skip("there is one disk only")
        ended = desk.encode("--workdir", other, code=78)
        assert f"{other} is not on the disk of" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "text", "code", "words"),
    [
        ("-o out.bin", "--column text", 2, "must end in .npy"),
        ("--template {text}", "--column text", 78, "keep one of them"),
        ("", "", 78, "One of column, template and sql is needed"),
        ("--set chunk.sise=3", "--column text", 78, "chunk.sise: unknown key"),
    ],
)
def test_wrong_calls(desk: Desk, arguments: str, text: str, code: int, words: str) -> None:
    """What is wrong is said in the config's words, before anything is made."""
    assert words in desk.encode(*arguments.split(), text=text, code=code).stderr
    assert not desk.out.exists()
