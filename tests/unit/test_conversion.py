"""Where a converted model is kept, and when it is made anew."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from chunkvisor.engine import conversion
from chunkvisor.engine.conversion import ensure_converted, with_place
from chunkvisor.errors import ExitCode, Halt
from chunkvisor_worker.contract.converted import Converted, ConvertedFiles, ConvertRequest
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Cause, Fault, ModelSpec, Phase
from chunkvisor_worker.contract.wire import read_message, write_message

MODEL = ModelSpec("m", "/models/m", revision="sha256:1", backend="openvino")
KNOWN = Converted("", {}, ("input_ids",), 8, 0, 0, False, False, None, None, None, {}, None, True, 0.0, {})


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some version of openvino."""
    monkeypatch.setattr(conversion, "version", lambda name: "1.0")


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[ConvertRequest]:
    """Requests to a child that converts at once."""
    requests: list[ConvertRequest] = []

    def convert(command: Sequence[str], log: Path, on_wait: Callable[[], None], environment: object) -> int:
        on_wait()
        request = read_message(ConvertRequest, AttemptFiles(Path(command[-1])).spec)
        assert request is not None
        requests.append(request)
        files = ConvertedFiles(Path(request.target))
        for path in files.content:
            path.write_bytes(path.name.encode())
        digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files.content}
        write_message(files.record, replace(KNOWN, made_from=request.made_from, digests=digests))
        return 0

    monkeypatch.setattr(conversion, "run_child", convert)
    return requests


def test_the_place_tells_what_it_was_made_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another revision, other arguments or another openvino have another place; the dtype and the length have not."""
    place = with_place(MODEL, tmp_path).converted
    assert place is not None
    assert Path(place).parent == tmp_path
    assert with_place(replace(MODEL, backend="torch"), tmp_path).converted is None
    for same in ({"dtype": "bfloat16"}, {"max_length": 8}, {"path": "/moved"}):
        assert with_place(replace(MODEL, **same), tmp_path).converted == place
    for other in ({"revision": "sha256:2"}, {"kwargs": {"a": 1}}, {"trust_remote_code": True}):
        assert with_place(replace(MODEL, **other), tmp_path).converted != place
    monkeypatch.setattr(conversion, "version", lambda name: "1.1")
    assert with_place(MODEL, tmp_path).converted != place


def test_it_is_made_once_and_anew_where_it_is_damaged(tmp_path: Path, children: list[ConvertRequest]) -> None:
    """A file that is cut, missing or another's has it made anew; one that is whole is used as it is."""
    model = with_place(MODEL, tmp_path / "openvino")
    (tmp_path / "openvino").mkdir()
    files = ConvertedFiles(Path(str(model.converted)))
    told: list[str] = []

    def ensure() -> int:
        ensure_converted(model, {}, tell=lambda: told.append("converting"))
        return len(children)

    assert [ensure(), ensure()] == [1, 1]
    files.weights.write_bytes(b"model.bi?")
    assert [ensure(), ensure()] == [2, 2]
    files.tokenizer.unlink()
    assert ensure() == 3
    write_message(files.record, replace(KNOWN, made_from="else"))
    assert ensure() == 4
    files.record.write_bytes(b"{")
    assert ensure() == len(told) == 5
    assert [path.name for path in (tmp_path / "openvino").iterdir()] == [files.folder.name]


def test_what_cannot_be_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends with the reason of the child that tried, its log and what to do."""

    def fail(command: Sequence[str], log: Path, on_wait: object, environment: object) -> int:
        cause = Cause("m.CannotConvertError", ("builtins.ValueError",), "model.backend is openvino, but it is not text")
        write_message(AttemptFiles(Path(command[-1])).fault, Fault(Phase.MODEL_LOAD, (cause,), ""))
        return 23

    monkeypatch.setattr(conversion, "run_child", fail)
    with pytest.raises(Halt) as caught:
        ensure_converted(with_place(MODEL, tmp_path / "openvino"), {})
    halt = caught.value
    assert halt.code is ExitCode.CONFIG
    assert "it is not text" in halt.why
    assert halt.log == tmp_path / "openvino" / "converting" / "worker.log"


@pytest.mark.parametrize(
    ("returncode", "log", "code", "remedy"),
    [
        (24, "", ExitCode.DISK, "free some space on that disk"),
        (1, "OSError: [Errno 28] No space left on device", ExitCode.DISK, "Free some space"),
        (-9, "", ExitCode.MACHINE, "give it more memory, or set model.backend to torch"),
    ],
)
def test_a_child_that_could_not_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returncode: int, log: str, code: ExitCode, remedy: str
) -> None:
    """On a full disk there is no room for the record: exit code and log tell it; what to do is not that of a chunk."""

    def fail(command: Sequence[str], path: Path, on_wait: object, environment: object) -> int:
        path.write_text(log)
        return returncode

    monkeypatch.setattr(conversion, "run_child", fail)
    with pytest.raises(Halt) as caught:
        ensure_converted(with_place(MODEL, tmp_path / "openvino"), {})
    assert caught.value.code is code
    assert caught.value.remedy.startswith(remedy)


@pytest.mark.parametrize("when", ["while it is made", "when it is made"])
def test_what_was_begun_does_not_stay(
    tmp_path: Path, children: list[ConvertRequest], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It is as large as the model, and nothing goes on with it; the log stays."""
    convert: Callable[..., int] = conversion.run_child  # type: ignore[attr-defined]  # as `children` has left it

    def stopped(command: Sequence[str], log: Path, on_wait: Callable[[], None], environment: object) -> int:
        log.write_text("some words")
        plain = log.parent / "plain"
        plain.mkdir()
        (plain / "model.bin").write_text("large")
        convert(command, log, on_wait, environment)
        if when == "while it is made":
            raise KeyboardInterrupt
        return 0

    def check() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(conversion, "run_child", stopped)
    with pytest.raises(KeyboardInterrupt):
        ensure_converted(with_place(MODEL, tmp_path), {}, check=check)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["converting/spec.json", "converting/worker.log"]


def test_a_model_that_changed_meanwhile_is_not_kept(tmp_path: Path, children: list[ConvertRequest]) -> None:
    """What `check` raises after the conversion leaves its place empty."""
    model = with_place(MODEL, tmp_path / "openvino")

    def check() -> None:
        raise Halt(ExitCode.CONFIG, "the model folder was changed")

    with pytest.raises(Halt, match="was changed"):
        ensure_converted(model, {}, check=check)
    assert not Path(str(model.converted)).exists()
