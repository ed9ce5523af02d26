"""Runs over sources elsewhere, for `make test-remote`: a bucket of moto's S3 server."""

import logging
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest

from harness import Workplace, contents, finish, local_engine_only

s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed (extra: remote)")
pytestmark = [local_engine_only, pytest.mark.filterwarnings("default")]
SECRET = "a-secret-that-is-never-written-down"
Put = Callable[[str, bytes], Any]


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """Writes into a bucket `texts`."""
    moto_server = pytest.importorskip(
        "moto.server", reason="moto is not installed (dependency group: remote)"
    )
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    host, port = server.get_host_and_port()
    # what another test has left
    urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    files = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    files.mkdir("texts")
    yield lambda name, data: files.pipe(f"texts/data/{name}", data)
    server.stop()


def test_sources_elsewhere(workplace: Workplace, put: Put, new_interpreters: None) -> None:
    """Files are read as those here: untouched they are not read again, changed they are refused,
    and updated.
    """
    address = "s3://texts/data/"

    def run(code: int, *words: str) -> str:
        ended = finish(workplace.begin(*words), code=code)
        return ended.stderr

    for name, data in (("b.csv", b"t\nthree\n"), ("a.csv", b"t\none\ntwo\n"), ("c.md", b"no")):
        put(name, data)
    workplace.write_config(
        "good:make", outputs={"out": {"source": f"{address}*.csv", "column": "t"}}
    )
    run(0)
    workplace.has(["one", "two", "three"])
    assert workplace.manifest()["source"]["files"] == [f"{address}{name}.csv" for name in "ab"]
    run(0)
    assert len(workplace.named("staging")) == 1

    put("b.csv", b"t\nseven\n")  # of the same size
    assert "--update" in run(78)
    run(0, "--update")
    workplace.has(["one", "two", "seven"])
    assert SECRET.encode() not in b"".join(contents(workplace.workdir).values())
