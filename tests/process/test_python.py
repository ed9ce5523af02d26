"""`chunkvisor.encode` and `chunkvisor.run`, as a program calls them."""

import json
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import chunkvisor
from docpages import blocks
from harness import (
    ENCODERS,
    ROOT,
    STAND_IN,
    Workplace,
    expected,
    halts,
    model_folder,
    path_with,
    said_by,
)

TEXTS = ["one", "two", None, "one", "ümläut\n\u2028 \x85 🙂"]


@pytest.fixture(autouse=True)
def encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoders of the tests can be imported; temporary folders can be seen."""
    monkeypatch.setenv("PYTHONPATH", path_with(ENCODERS))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)


def encode(texts: Any, encoder: str = "good:make", **more: Any) -> np.ndarray:
    """On the CPU, without a standby."""
    overrides = more.pop("set", ())
    overrides = overrides if isinstance(overrides, str) else ("workers.standby=0", *overrides)
    return chunkvisor.encode(texts, model="m", encoder=encoder, device="cpu", set=overrides, **more)


def test_in_memory(tmp_path: Path) -> None:
    """Without a workdir the array is in memory, one row a text, and no trace is left on the disk."""
    vectors = encode(iter(TEXTS), chunk_size=2)
    np.testing.assert_array_equal(vectors, expected(TEXTS))
    assert not isinstance(vectors, np.memmap)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_in_a_workdir(tmp_path: Path) -> None:
    """With a workdir the array is mapped; the same texts again compute nothing."""
    events: list[str] = []
    for call, texts in enumerate([TEXTS, iter(TEXTS)]):
        listen = lambda name, _details: events.append(name)  # noqa: E731 - it stands in one line
        vectors = encode(texts, workdir="cache/mine", on_event=listen)
        assert isinstance(vectors, np.memmap)
        np.testing.assert_array_equal(vectors, expected(TEXTS))
        assert events.count("chunk_committed") == 1, call
    assert (tmp_path / "cache" / "mine" / "embeddings.npy").exists()
    assert "output_already_complete" in events
    assert "staging" not in events[events.index("run_ended") :]


@pytest.mark.parametrize(
    ("more", "dimension"), [({}, 8), ({"truncate_dim": 4}, 4), ({"model": "org/model"}, 0)]
)
def test_no_texts(tmp_path: Path, more: dict[str, Any], dimension: int) -> None:
    """Of no texts there are no vectors, as wide as the model's folder says; no worker is started."""
    folder = model_folder(tmp_path / "model")
    (folder / "config.json").write_text('{"hidden_size": 8}')
    vectors = chunkvisor.encode(
        iter([]), **{"model": str(folder), "workdir": "w", "device": "cuda:7", **more}
    )
    assert vectors.shape == (0, dimension)
    assert vectors.dtype == np.float32
    assert list((tmp_path / "w").iterdir()) == []


def test_other_texts_in_the_same_workdir() -> None:
    """Other texts in a workdir are refused, with what to do in Python's words, unless it is to
    begin anew.
    """
    encode(["one"], workdir="w")
    with halts(78, "same number of rows, other content") as caught:
        encode(["two"], workdir="w")
    assert "from_scratch=True" in caught.value.remedy
    assert "--" not in caught.value.remedy
    assert not [entry for entry in caught.traceback if "supervise" in str(entry.path)]
    np.testing.assert_array_equal(
        encode(["two"], workdir="w", from_scratch=True), expected(["two"])
    )


def test_update(tmp_path: Path) -> None:
    """With `update`, other texts are taken in whatever they come in, and only new ones are encoded.

    An array that is mapped stays what it was; of the texts, only those of the last call are kept.
    """
    first = encode(["a", "b"], workdir="w")
    for right, new in ((["n", "b", "a", "b"], 1), (["c", "b"], 1), (["b"], 0)):
        vectors = encode(iter(right), workdir="w", update=True)
        np.testing.assert_array_equal(vectors, expected(right))
        manifest = json.loads((tmp_path / "w" / "embeddings.json").read_text())
        assert manifest["texts_encoded"] == new
        assert len(list((tmp_path / "w").glob("*texts-*"))) == 1
    np.testing.assert_array_equal(first, expected(["a", "b"]))


@pytest.mark.parametrize("update", [False, True])
def test_a_damaged_copy_of_the_texts_is_written_anew(tmp_path: Path, update: bool) -> None:
    """The file of the texts in the workdir is not trusted by its name: each row has the vector of
    the text given.
    """
    encode(TEXTS, workdir="mine")
    (copy,) = (tmp_path / "mine").glob("texts-*.jsonl")
    copy.write_text(copy.read_text().replace("two", "owt"))

    vectors = encode(TEXTS, workdir="mine", update=update)

    np.testing.assert_array_equal(vectors, expected(TEXTS))


def test_a_mapped_array_may_be_changed(tmp_path: Path) -> None:
    """A caller may normalize the array in place: pages are copied as they are written, and the file
    stays.
    """
    vectors = encode(TEXTS, workdir="mine")
    assert vectors.flags.writeable
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(np.load(tmp_path / "mine/embeddings.npy"), expected(TEXTS))
    np.testing.assert_array_equal(encode(TEXTS, workdir="mine"), expected(TEXTS))


def test_interrupted_work_goes_on() -> None:
    """What was done before a failure is not done again."""
    kwargs = {"plan": {"embeddings/1": "segfault@encode"}, "times": None}
    arguments: dict[str, Any] = {
        "encoder": "misbehaving:make",
        "workdir": "w",
        "chunk_size": 1,
        "kwargs": kwargs,
    }
    with pytest.raises(chunkvisor.ChunkvisorError) as caught:
        encode(["a", "b", "c"], set=("recovery.on_bad_row=fail",), **arguments)
    error = caught.value
    assert (error.code, error.outcome, error.log is not None and error.log.exists()) == (
        78,
        "crashed",
        True,
    )
    halted = json.loads(Path("w/.chunkvisor/events.jsonl").read_text().splitlines()[-1])
    assert (error.details()["outcome"], halted["event"], halted["outcome"]) == (
        "crashed",
        "halted",
        "crashed",
    )
    assert error.what.endswith("a row cannot be encoded: texts[1]")
    assert str(error).splitlines() == error.lines()
    events: list[str] = []
    vectors = encode(
        ["a", "b", "c"],
        set=("recovery.on_bad_row=fail", "env.BEHAVE='1'"),
        on_event=lambda name, _details: events.append(name),
        **arguments,
    )
    np.testing.assert_array_equal(vectors, expected(["a", "b", "c"]))
    assert events.count("chunk_committed") == 2  # the first was there


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a", "b", "half \ud83d"], r"texts\[2\] has a lone surrogate"),
        (SimpleNamespace(columns=["u"]), r"texts is a SimpleNamespace\ndo:  Give a list of"),
    ],
    ids=["surrogate", "frame"],
)
def test_what_is_no_text(texts: Any, words: str, tmp_path: Path) -> None:
    """What is not a text is refused by its index, and leaves nothing behind."""
    with halts(78, words):
        encode(texts, workdir="w")
    assert list((tmp_path / "w").glob("*")) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"batch_size": 0},
            r"^encode.batch_size: 0 should be .*\ndo:  Correct this, then call it again\.$",
        ),
        ({"chunk_size": 0}, "^chunk.size: 0 should be"),
        ({"set": ("chunk.sise=3",)}, "^set chunk.sise=3: chunk.sise: unknown key"),
        ({"set": "chunk.sise=3"}, "^set chunk.sise=3: chunk.sise: unknown key"),
        ({"encoder": "good"}, '^model.encoder: "good" should be'),
        ({"prompt": "a", "prompt_name": "b"}, "prompt and prompt_name"),
        (
            {"set": ("outputs.embeddings.where=text<>''",)},
            r"^outputs\.embeddings\.where is only for chunkvisor\.run",
        ),
    ],
    ids=str,
)
def test_wrong_arguments(arguments: dict[str, Any], words: str) -> None:
    """Arguments are checked as the config's keys are, before a text is looked at."""
    with pytest.raises(chunkvisor.ChunkvisorError, match=words):
        encode(iter([object()]), **arguments)


def test_errors_of_the_texts_go_through() -> None:
    """What the caller's own code raises is raised."""

    def texts() -> Any:
        yield "a"
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        encode(texts())


def test_missing_values_are_empty_texts() -> None:
    """None, NaN and pandas' NA in a column of strings are empty texts, as null is in a file."""
    missing = type("NAType", (), {})()
    vectors = encode(["a", None, float("nan"), np.float64("nan"), np.float32("nan"), missing])
    np.testing.assert_array_equal(vectors, expected(["a", "", "", "", "", ""]))


def test_nothing_is_kept_without_a_workdir(tmp_path: Path) -> None:
    """After an error the temporary folder is gone, with the texts in it; the error says so, names
    no file of it, and has the end of the log.
    """
    with pytest.raises(chunkvisor.ChunkvisorError) as caught:
        encode(["a"], encoder="no_such_module:make")
    assert list((tmp_path / "tmp").iterdir()) == []
    assert "were in a temporary folder, which is removed" in caught.value.remedy
    assert str(tmp_path / "tmp") not in str(caught.value)
    assert "No module named 'no_such_module'" in "\n".join(caught.value.__notes__)
    with halts(75) as stopped:
        encode(["a", "b"], chunk_size=1, stop_after=1e-9)
    assert "continue" not in stopped.value.remedy
    assert "kept" not in stopped.value.remedy


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("normalize_embeddings", "use normalize"),
        ("show_progress_bar", "use progress"),
        ("convert_to_tensor", "use torch.from_numpy(vectors)"),
        ("precision", "use sentence_transformers.quantize_embeddings(vectors, precision)"),
        ("batchsize", "did you mean batch_size?"),
        ("zzz", "there are: texts, model, workdir"),
    ],
)
def test_an_unknown_argument_is_named(argument: str, hint: str) -> None:
    """An argument that `encode` does not have is refused with what to use in its place."""
    with halts(78) as caught:
        encode(["a"], **dict[str, Any]({argument: True}))
    assert caught.value.what.startswith(f"encode has no argument {argument}; {hint}")


def test_quarantined_texts_warn(caplog: pytest.LogCaptureFixture) -> None:
    """Texts without a vector are NaN and warned of by index, as in the log; nothing is raised."""
    with pytest.warns(
        chunkvisor.QuarantineWarning, match=r"1 row has no vector: texts\[1\]"
    ) as seen:
        vectors = encode(["one", "bad", "two"], encoder="deadly:make")
    assert np.isnan(vectors[1]).all()
    np.testing.assert_array_equal(vectors[[0, 2]], expected(["one", "two"]))
    assert "embeddings row 1 (texts[1]) cannot be encoded" in caplog.text
    assert seen[0].filename == __file__
    assert str(seen[0].message).splitlines()[1:] == [
        "  bad_output: its vectors have NaN or infinity",
        "  to find them: numpy.isnan(vectors).any(axis=1)",
    ]


def test_run_reports(workplace: Workplace) -> None:
    """`run` does what the command does, and reports file, manifest and quarantined rows of each
    output.
    """
    workplace.prepare(["one", "bad", "two"], "deadly:make")
    with pytest.warns(chunkvisor.QuarantineWarning):
        report = chunkvisor.run(workplace.config_path, set=["chunk.size=2"])
    out = report.outputs["out"]
    assert out.path == workplace.final
    assert (out.manifest["rows"], report.quarantined) == (3, 1)
    assert (out.quarantined[0].row, out.quarantined[0].place) == (1, f"{workplace.source}:2")
    assert out.vectors().shape == (3, 8)
    Path("mended").touch()
    assert (
        chunkvisor.run(workplace.config_path, max_rows=1, from_scratch=True)
        .outputs["out"]
        .manifest["rows"]
        == 1
    )


def test_progress(workplace: Workplace, capfd: pytest.CaptureFixture[str]) -> None:
    """A run is shown if that is wanted; without the argument nothing is written."""
    workplace.prepare(["one", "two", "three", "one"], "good:make", chunk__size=1)
    chunkvisor.run(workplace.config_path, progress=True)
    assert "out: complete, 4 rows" in capfd.readouterr().err
    chunkvisor.run(workplace.config_path, from_scratch=True)
    assert capfd.readouterr().err == ""


def test_errors_travel_between_processes() -> None:
    """An error keeps all of its parts through a process pool, which pickles it."""
    error = chunkvisor.ChunkvisorError(
        chunkvisor.ExitCode.DISK, "full", why="it is", log=Path("worker.log")
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is chunkvisor.ChunkvisorError
    assert (again.code, again.lines()) == (error.code, error.lines())


SCRIPT = """
import sys
import chunkvisor
assert not {name.partition(".")[0] for name in sys.modules} & {"numpy", "pydantic", "click", "yaml"}
vectors = chunkvisor.encode(["one", "two"], model="m", encoder="good:make", device="cpu")
print("imported once", vectors.shape, {"torch", "duckdb"} & sys.modules.keys())
"""


def test_in_a_script_without_a_guard(tmp_path: Path) -> None:
    """A plain script works: `import chunkvisor` is light, no worker runs the script again, torch
    stays outside.
    """
    (tmp_path / "script.py").write_text(SCRIPT)
    said = said_by(sys.executable, "script.py", cwd=tmp_path)
    assert said == "imported once (2, 8) set()\n"


INTERRUPTED = """
import os, signal
import chunkvisor

def on_event(name, details):
    if name == "go":
        os.kill(os.getpid(), signal.SIGNAL)

try:
    chunkvisor.encode(["a", "b"], model="m", encoder="good:make", device="cpu", chunk_size=1, workdir="w",
                      set="workers.standby=0", on_event=on_event)
except Exception:
    print("swallowed")
except KeyboardInterrupt as interrupt:
    print("interrupted:", interrupt)
"""


def test_ctrl_c(tmp_path: Path) -> None:
    """After SIGINT the chunk under way is finished, then KeyboardInterrupt is raised as anywhere in
    Python.
    """
    script = INTERRUPTED.replace("signal.SIGNAL", "signal.SIGINT")
    said = said_by(sys.executable, "-c", script, cwd=tmp_path)
    assert said.startswith("interrupted: stopped by SIGINT. Call it again to continue")
    chunks = tmp_path / "w/.chunkvisor/outputs/embeddings/0001/chunks"
    assert len([*chunks.rglob("*.npy")]) == 1


def test_sigterm_ends_the_program(tmp_path: Path) -> None:
    """After SIGTERM the program ends with 143: `except Exception` does not swallow that."""
    script = INTERRUPTED.replace("signal.SIGNAL", "signal.SIGTERM")
    assert said_by(sys.executable, "-c", script, code=143, cwd=tmp_path) == ""


def test_public_names() -> None:
    """Every public name can be had, is listed, and knows no other."""
    assert set(chunkvisor.__all__) == set(dir(chunkvisor))
    for name in chunkvisor.__all__:
        assert getattr(chunkvisor, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = chunkvisor.nonsense


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of the pages, one after the other, do what they say, here with a model of eight
    dimensions.
    """
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN), prepend=os.pathsep)
    model_folder(tmp_path / "model")
    (tmp_path / "articles.csv").write_text("title\nOne thing\nAnother\n")
    (tmp_path / "config.yaml").write_text(
        "workdir: cache/embeddings\nmodel: {name: model}\ndevice: cpu\n"
        "outputs: {titles: {source: articles.csv, column: title}}\n"
    )
    pages = [
        ROOT / "docs" / "reference" / "python.md",
        ROOT / "docs" / "how-to" / "test-your-pipeline.md",
    ]
    # A stand-in for torch cannot be that of sentence-transformers.
    texts = [block.text for page in pages for block in blocks(page, "python")]
    script = "\n".join(each for each in texts if "chunkvisor.sentence_t" not in each)
    script = script.replace("(3, 384)", "(3, 8)")
    said_by(sys.executable, "-", text=script, cwd=tmp_path)
