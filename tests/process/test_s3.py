"""A run over an S3 bucket, against a real S3 server on this machine, moto's; skipped where that is not installed."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

from harness import Workplace, expected, local_engine_only

s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed (extra: remote)")
moto_server = pytest.importorskip("moto.server", reason="moto is not installed (dependency group: remote)")
pytestmark = [local_engine_only, pytest.mark.filterwarnings("default")]
SECRET = "a-secret-that-is-never-written-down"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket `texts`, as s3fs sees it."""
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
    yield files
    server.stop()


def everything_written(folder: Path) -> bytes:
    """All bytes of all files below."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_sources_in_a_bucket(workplace: Workplace, bucket: Any) -> None:
    """Objects are read as files are: untouched they are not read again, changed they are refused, and updated."""
    bucket.pipe({"texts/b.jsonl": b'{"t": "three"}\n', "texts/a.csv": b"t\none\ntwo\n", "texts/c.md": b"no"})
    workplace.write_config(
        "good:make", outputs={"out": {"source": ["s3://texts/a.*", "s3://texts/b.jsonl"], "column": "t"}}
    )
    ended = workplace.run()
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(workplace.vectors(), expected(["one", "two", "three"]))
    assert workplace.manifest()["source"]["files"] == ["s3://texts/a.csv", "s3://texts/b.jsonl"]
    assert workplace.run().returncode == 0
    assert [each["event"] for each in workplace.events()].count("staging") == 1

    bucket.pipe("texts/b.jsonl", b'{"t": "four"}\n')
    ended = workplace.run()
    assert ended.returncode == 78
    assert "--update" in ended.stderr
    assert workplace.run("--update").returncode == 0
    np.testing.assert_array_equal(workplace.vectors(), expected(["one", "two", "four"]))
    bucket.rm("texts/a.csv")
    ended = workplace.run()
    assert ended.returncode == 78
    assert "No file matches s3://texts/a.*" in ended.stderr
    assert SECRET.encode() not in everything_written(workplace.workdir)
