"""Sources at hf://, read through huggingface_hub from a small hub of our own on loopback; for `make test-remote`.

Each run is a new interpreter: huggingface_hub reads the hub's address when it is imported.
"""

import hashlib
import http.server
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import Workplace, expected, local_engine_only

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (extra: worker)")
pytest.importorskip("s3fs", reason="s3fs is not installed (extra: remote)")
pytestmark = local_engine_only
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "a-token-that-is-never-written-down"


class Hub(http.server.ThreadingHTTPServer):
    """Serves one data set, to those who have the token."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Visitor)
        self.files: dict[str, bytes] = {}

    def listed(self, name: str) -> dict[str, Any]:
        """A file or a folder as the hub's lists have it."""
        if name not in self.files:
            return {"type": "directory", "path": name, "oid": COMMIT}
        oid = hashlib.sha1(self.files[name], usedforsecurity=False).hexdigest()
        return {"type": "file", "path": name, "size": len(self.files[name]), "oid": oid}


class Visitor(http.server.BaseHTTPRequestHandler):
    """One request; the addresses are those that huggingface_hub's HfFileSystem asks for."""

    server: Hub

    def do_GET(self) -> None:
        """The repository, what is in it, or a file."""
        files, status = self.server.files, 200
        body = json.dumps({"id": "me/reviews", "sha": COMMIT, "siblings": []}).encode()
        if (tree := re.search(r"/tree/[^/?]+/?([^?]*)", self.path)) is not None:
            below = f"{tree[1]}/" if tree[1] else ""
            names = [name.removeprefix(below).split("/")[0] for name in files if name.startswith(below)]
            body = json.dumps([self.server.listed(below + name) for name in dict.fromkeys(names)]).encode()
        elif (name := self.path.partition("/resolve/main/")[2]) in files:
            first = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            body = files[name]
            if first is not None:
                status, body = 206, body[int(first[1]) : int(first[2]) + 1 if first[2] else None]
        elif "/resolve/" in self.path:
            status, body = 404, b""
        self._answer(status, body)

    def do_POST(self) -> None:
        """What is said of paths."""
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        found = [self.server.listed(name) for name in self.server.files if name in asked.replace("%2F", "/")]
        self._answer(200, json.dumps(found).encode())

    def _answer(self, status: int, body: bytes) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status, body = 401, b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that huggingface_hub asks, and an empty cache."""
    hub = Hub()
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    for name, value in {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(tmp_path / "cache"),
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield hub
    hub.shutdown()
    hub.server_close()


def run(workplace: Workplace, *words: str) -> subprocess.CompletedProcess[str]:
    """`chunkvisor run` in an interpreter of its own."""
    command = workplace.command("run", str(workplace.config_path), *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_sources_in_a_data_set(workplace: Workplace, hub: Hub) -> None:
    """Files of the hub are read as files are; one that has changed, though not in size, is noticed, and updated."""
    hub.files |= {"data/a.csv": b"t\none\ntwo\n", "data/b.csv": b"t\nthree\n", "README.md": b"no"}
    output = {"source": "hf://datasets/me/reviews/data/*.csv", "column": "t"}
    workplace.write_config("good:make", outputs={"out": output})
    ended = run(workplace)
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(workplace.vectors(), expected(["one", "two", "three"]))
    named = [f"hf://datasets/me/reviews/data/{name}.csv" for name in "ab"]
    assert workplace.manifest()["source"]["files"] == named
    assert run(workplace).returncode == 0
    assert [each["event"] for each in workplace.events()].count("staging") == 1

    hub.files["data/b.csv"] = b"t\nseven\n"
    ended = run(workplace)
    assert ended.returncode == 78, ended.stderr
    assert "--update" in ended.stderr
    ended = run(workplace, "--update")
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(workplace.vectors(), expected(["one", "two", "seven"]))
    written = [path.read_bytes() for path in workplace.workdir.rglob("*") if path.is_file()]
    assert TOKEN.encode() not in b"".join(written)
