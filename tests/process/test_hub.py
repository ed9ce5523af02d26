"""A model of the hub is resolved and downloaded once, from a small hub of our own on loopback."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkvisor.config.model import ModelConfig
from chunkvisor.engine.modelsource import ModelSource, resolve_hub, resolve_local
from chunkvisor.errors import ExitCode, Halt
from late import needs

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"the same weights",
    "onnx/model.onnx": b"graph",
}
WAIT_S = 60.0

pytestmark = needs("huggingface_hub")


class Hub(http.server.ThreadingHTTPServer):
    """Serves one model; the first requests can be answered with an error."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Visitor)
        self.asked: list[str] = []
        self.errors: list[int] = []


class Visitor(http.server.BaseHTTPRequestHandler):
    """One request; the addresses and headers are those that huggingface_hub reads."""

    server: Hub

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer, to HEAD without the body."""
        self.server.asked.append(self.path)
        status, body, headers = 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        name = self.path.partition(f"/resolve/{COMMIT}/")[2]
        if self.server.errors:
            status, headers = self.server.errors.pop(0), {}
        elif self.path.startswith("/api/models/some/model/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": name}
                for name, data in FILES.items()
            ]
            status, body, headers = 200, json.dumps(tree).encode(), {}
        elif self.path.startswith("/api/models/some/model"):
            siblings = [{"rfilename": name} for name in FILES]
            status, headers = 200, {}
            body = json.dumps({"id": "some/model", "sha": COMMIT, "siblings": siblings}).encode()
        elif name in FILES:
            status, body, headers = 200, FILES[name], {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT}
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that huggingface_hub asks, and an empty cache."""
    hub = Hub()
    threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield hub
    hub.shutdown()
    hub.server_close()


def resolve(folder: Path, waits: list[str], *, anew: bool = False, **model: Any) -> ModelSource:
    """The model, resolved in a workdir; no wait is waited for."""
    config, cache, scratch = (
        ModelConfig(**{"name": "some/model"} | model),
        folder / "model.json",
        folder / "fetch",
    )
    return resolve_hub(
        config, cache, scratch, WAIT_S, lambda _s, _w, why: waits.append(why), anew=anew
    )


def names(source: ModelSource) -> set[str]:
    """Files of a snapshot."""
    assert source.path is not None
    folder = Path(source.path)
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_model_is_downloaded_once(hub: Hub, tmp_path: Path) -> None:
    """The commit is fixed, weights in old formats are left out (but not for ONNX), and a resume asks nobody."""
    first = resolve(tmp_path, [])
    asked = len(hub.asked)
    again = resolve(tmp_path, [])

    assert first == again
    assert (first.revision, names(first)) == (COMMIT, {"config.json", "model.safetensors"})
    assert len(hub.asked) == asked
    (tmp_path / "onnx").mkdir()
    assert names(resolve(tmp_path / "onnx", [], kwargs={"backend": "onnx"})) == set(FILES)


def test_what_is_fixed_stays_beside_another_model(hub: Hub, tmp_path: Path) -> None:
    """A run with another revision or a local folder takes no commit from another; one from scratch asks the hub."""
    anew = resolve(tmp_path, [], anew=True)
    first = resolve(tmp_path, [])
    assert anew == first
    resolve(tmp_path, [], revision="other")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    resolve_local(ModelConfig(name=str(tmp_path / "model")), tmp_path / "model.json")
    asked = len(hub.asked)

    assert resolve(tmp_path, []) == first
    assert len(hub.asked) == asked


def test_a_busy_hub_is_asked_again(hub: Hub, tmp_path: Path) -> None:
    """After 503 the run waits and tries again, and says why."""
    hub.errors = [503] * 12  # huggingface_hub tries a few times by itself
    waits: list[str] = []

    source = resolve(tmp_path, waits)

    assert source.revision == COMMIT
    assert waits
    assert "503" in waits[0]
    assert "give its path in place of the name" in waits[0]  # what a person can do who has no hub


def test_a_model_that_is_not_there_ends_the_run(hub: Hub, tmp_path: Path) -> None:
    """A wrong name is the config's fault, and nobody waits for it."""
    waits: list[str] = []

    with pytest.raises(Halt) as halt:
        resolve(tmp_path, waits, name="some/typo")

    assert halt.value.code is ExitCode.CONFIG
    assert "some/typo" in str(halt.value)
    assert waits == []
