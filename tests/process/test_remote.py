"""Runs over sources elsewhere, for `make test-remote`: a bucket of moto's S3 server, and a hub of our own on loopback.

Each run is a new interpreter: huggingface_hub reads the hub's address when it is imported.
"""

import hashlib
import http.server
import json
import logging
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import numpy as np
import pytest

from harness import Workplace, expected, local_engine_only

s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed (extra: remote)")
pytestmark = [local_engine_only, pytest.mark.filterwarnings("default")]
SECRET = "a-secret-that-is-never-written-down"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Place(NamedTuple):
    """Where files are elsewhere."""

    address: str
    put: Callable[[str, bytes], Any]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A bucket `texts`, as s3fs sees it."""
    moto_server = pytest.importorskip("moto.server", reason="moto is not installed (dependency group: remote)")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    host, port = server.get_host_and_port()
    urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()  # what another test has left
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    files = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    files.mkdir("texts")
    yield Place("s3://texts/data/", lambda name, data: files.pipe(f"texts/data/{name}", data))
    server.stop()


class Hub(http.server.ThreadingHTTPServer):
    """Serves one data set, to those who have the token."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Visitor)
        self.files: dict[str, bytes] = {}

    def listed(self, name: str) -> dict[str, Any]:
        """Return a file or a folder as the hub's lists have it."""
        if name not in self.files:
            return {"type": "directory", "path": name, "oid": COMMIT}
        oid = hashlib.sha1(self.files[name], usedforsecurity=False).hexdigest()
        return {"type": "file", "path": name, "size": len(self.files[name]), "oid": oid}


class Visitor(http.server.BaseHTTPRequestHandler):
    """One request; the addresses are those that huggingface_hub's HfFileSystem asks for."""

    server: Hub

    def do_GET(self) -> None:
        """Send the repository, what is in it, or a file."""
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
        """Send what is known of paths."""
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        found = [self.server.listed(name) for name in self.server.files if name in asked.replace("%2F", "/")]
        self._answer(200, json.dumps(found).encode())

    def _answer(self, status: int, body: bytes) -> None:
        if self.headers.get("Authorization") != f"Bearer {SECRET}":
            status, body = 401, b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A hub that huggingface_hub asks, and an empty cache."""
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (extra: worker)")
    hub = Hub()
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    for name, value in {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(tmp_path / "cache"),
        "HF_TOKEN": SECRET,
        "HF_HUB_DISABLE_XET": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield Place("hf://datasets/me/reviews/data/", lambda name, data: hub.files.update({f"data/{name}": data}))
    hub.shutdown()
    hub.server_close()


@pytest.mark.parametrize("place", ["bucket", "hub"])
def test_sources_elsewhere(workplace: Workplace, request: pytest.FixtureRequest, place: str) -> None:
    """Files are read as those here: untouched they are not read again, changed they are refused, and updated."""
    address, put = request.getfixturevalue(place)

    def run(code: int, *words: str) -> str:
        command = workplace.command("run", str(workplace.config_path), *words)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == code, ended.stderr
        return ended.stderr

    for name, data in (("b.csv", b"t\nthree\n"), ("a.csv", b"t\none\ntwo\n"), ("c.md", b"no")):
        put(name, data)
    workplace.write_config("good:make", outputs={"out": {"source": f"{address}*.csv", "column": "t"}})
    run(0)
    np.testing.assert_array_equal(workplace.vectors(), expected(["one", "two", "three"]))
    assert workplace.manifest()["source"]["files"] == [f"{address}{name}.csv" for name in "ab"]
    run(0)
    assert [each["event"] for each in workplace.events()].count("staging") == 1

    put("b.csv", b"t\nseven\n")  # of the same size
    assert "--update" in run(78)
    run(0, "--update")
    np.testing.assert_array_equal(workplace.vectors(), expected(["one", "two", "seven"]))
    written = [path.read_bytes() for path in workplace.workdir.rglob("*") if path.is_file()]
    assert SECRET.encode() not in b"".join(written)
