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


def test_finals_in_a_bucket(workplace: Workplace, bucket: Any) -> None:
    """Finals are uploaded once, their manifests as well; what is gone or has changed is uploaded again."""
    bucket.mkdir("vectors")
    workplace.write_source(["one", "two"])
    workplace.write_config("good:make", upload="s3://vectors/mine", outputs__out__shards=2)
    ended = workplace.run()
    assert ended.returncode == 0, ended.stderr

    def uploaded() -> dict[str, bytes]:
        return {name.removeprefix("vectors/mine/"): bucket.cat_file(name) for name in bucket.find("vectors")}

    def here() -> dict[str, bytes]:
        names = ["out/0000.npy", "out/0001.npy", "out.json"]
        return {name: (workplace.workdir / name).read_bytes() for name in names}

    def uploads() -> int:
        return [each["event"] for each in workplace.events()].count("uploaded")

    assert uploaded() == here()
    assert workplace.run().returncode == 0
    assert uploads() == 1
    bucket.rm("vectors/mine/out.json")
    assert workplace.run().returncode == 0
    assert (uploaded(), uploads()) == (here(), 2)

    ended = workplace.run("--set", "outputs.out.shards=null", "--set", "upload=s3://nowhere/mine")
    assert ended.returncode in (75, 78), ended.stderr
    assert "out is complete in the workdir all the same" in ended.stderr
    assert workplace.run("--set", "outputs.out.shards=null").returncode == 0
    assert uploaded().keys() == {"out.npy", "out.json"}
    assert SECRET.encode() not in everything_written(workplace.workdir)


def test_whose_finals_are_in_the_bucket(workplace: Workplace, bucket: Any) -> None:
    """A workdir replaces what it has put there itself, in whatever generation; another's is refused at the start."""
    bucket.mkdir("vectors")
    workplace.write_source(["one", "two"])
    workplace.write_config("good:make", upload="s3://vectors/mine")
    assert workplace.run().returncode == 0
    workplace.write_source(["one", "three"])
    for options in (("--update",), ("--from-scratch", "--yes"), ("--set", "upload=s3://vectors/more"), ()):
        ended = workplace.run(*options)
        assert ended.returncode == 0, ended.stderr
    assert bucket.cat_file("vectors/mine/out.npy") == (workplace.workdir / "out.npy").read_bytes()

    before = {name: bucket.cat_file(name) for name in bucket.find("vectors")}
    ended = workplace.run("--set", "workdir=other")
    assert ended.returncode == 78
    assert "has files that this workdir has not put there, and that would be replaced: out.json" in ended.stderr
    assert not (workplace.folder / "other" / "out.npy").exists()
    assert {name: bucket.cat_file(name) for name in bucket.find("vectors")} == before
    # The same vectors, made by a workdir that knows nothing of the first: only the manifest is sent.
    assert workplace.run("--set", "workdir=other", "--set", "upload=null").returncode == 0
    ended = workplace.run("--set", "workdir=other")
    assert ended.returncode == 0, ended.stderr
    manifest = (workplace.folder / "other" / "out.json").read_bytes()
    assert {name: bucket.cat_file(name) for name in bucket.find("vectors")} == before | {
        "vectors/mine/out.json": manifest
    }
    # Now it is the other one's, which the first one sees.
    workplace.write_source(["four"])
    ended = workplace.run("--update")
    assert ended.returncode == 78
    assert "would be replaced: out.json" in ended.stderr
