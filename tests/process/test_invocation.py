"""The numbered folder of each invocation of `run`."""

import json
from pathlib import Path

import pytest
import yaml

from chunkvisor.config.choices import is_secret
from chunkvisor.show.record import (
    KEPT,
    LEFT_OUT,
    open_invocation,
    without_secrets,
)
from chunkvisor.store.layout import InvocationFiles, Layout
from harness import kill, wait_for
from scripted_workplace import ScriptedWorkplace

TIME = len("2026-01-31 23:59:59 ")
"""What each line of a run begins with."""


@pytest.mark.parametrize(
    ("names", "number"),
    [
        (["latest", "notes.txt"], 1),
        (["001_a", "002"], 3),
        (["003_failed", "007-mine", "012 copy", "old_040"], 13),
        (["1000_a", "999_b"], 1001),
        (["20260131_backup", "002_a"], 3),
    ],
)
def test_next_number(tmp_path: Path, names: list[str], number: int) -> None:
    """The next number is found whatever follows the numbers that are there, and whatever else lies around."""
    for name in names:
        (Layout(tmp_path).runs / name).mkdir(parents=True)
    files = open_invocation(Layout(tmp_path))
    assert files is not None
    assert files.name.startswith(f"{number:03d}_2")


def test_open_invocation(tmp_path: Path) -> None:
    """Each gets a number of its own, `latest` points to the newest, and the number of folders is bounded."""
    layout = Layout(tmp_path)
    layout.hidden.mkdir()
    first = open_invocation(layout)
    assert first is not None
    first.folder.rename(layout.runs / "001_the_good_one")
    for _ in range(KEPT + 2):
        files = open_invocation(layout)
        assert files is not None
        assert layout.latest.readlink() == Path(files.name)
    assert files is not None
    names = {path.name for path in layout.runs.iterdir()}
    assert len(names) == KEPT + 2  # the renamed one and the link
    assert "001_the_good_one" in names
    assert files.name.startswith(f"{KEPT + 3:03d}_")


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("OPENAI_API_KEY", True),
        ("aws-secret", True),
        ("password", True),
        ("batch_tokens", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("CUDA_VISIBLE_DEVICES", False),
        ("key_value_cache", True),
    ],
)
def test_is_secret(name: str, secret: bool) -> None:
    """A name with the word for a secret in it counts as one; rather one too many."""
    assert is_secret(name) is secret


def test_without_secrets() -> None:
    """All of env, tokens, credentials in addresses and the addresses of notices are left out; the rest stays."""
    values = {
        "env": {"HF_TOKEN": "hf_abc", "HF_ENDPOINT": "https://me:pw@hub.example/x", "PIN_KEY": 12, "A": None},
        "kwargs": {"HF_ENDPOINT": "https://me:pw@hub.example/x", "api_key": "abc"},
        "notify": ["slack://tokenA/tokenB", "mailto://me:pw@example.org"],
        "encode": {"batch_tokens": 4096, "normalize": True},
        "workdir": "w",
    }
    assert without_secrets(values) == {
        "env": dict.fromkeys(("HF_TOKEN", "HF_ENDPOINT", "PIN_KEY", "A"), LEFT_OUT),
        "kwargs": {"HF_ENDPOINT": f"https://{LEFT_OUT}@hub.example/x", "api_key": LEFT_OUT},
        "notify": [f"slack://{LEFT_OUT}", f"mailto://{LEFT_OUT}"],
        "encode": {"batch_tokens": 4096, "normalize": True},
        "workdir": "w",
    }


@pytest.fixture
def place(tmp_path: Path) -> ScriptedWorkplace:
    """Two chunks of two texts."""
    return ScriptedWorkplace.make(tmp_path / "place", ["t0", "t1", "t2", "t3"], chunk__size=2)


def newest(place: ScriptedWorkplace) -> InvocationFiles:
    """The folder that `latest` leads to."""
    return InvocationFiles(Layout(place.workdir).latest)


def test_what_a_run_leaves(place: ScriptedWorkplace) -> None:
    """Log, config and surroundings of a run with a fault; the log has every line that standard error had of it."""
    place.lay("t2", "crash")
    place.write_config("scripted:make", chunk__size=2, env__MY_TOKEN="hush", env__PGPASS="hush")
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    files = newest(place)
    assert files.folder.resolve().name.startswith("001_")
    log = files.log.read_text()
    # Without the times: a second may begin between the one line and the other.
    logged = [line[TIME:] for line in log.splitlines()]
    hints = ("to use it: ", "to check the files: ", "how the run went: ")
    shown = [line[TIME:] for line in ended.stderr.splitlines() if not line[TIME:].startswith(hints)]
    assert [line for line in shown if line not in logged] == []
    assert "out: complete" in log
    assert "crashed" in log
    config = yaml.safe_load(files.config.read_text())
    assert config["chunk"]["size"] == 2
    assert config["env"] == dict.fromkeys(("MY_TOKEN", "PGPASS", "PYTHONPATH"), LEFT_OUT)
    assert "hush" not in "".join(path.read_text() for path in files.folder.iterdir())
    assert json.loads(files.environment.read_text())["packages"]["numpy"]


def test_refused_by_the_lock_and_killed(place: ScriptedWorkplace) -> None:
    """A second run at the same time makes no folder; the next gets the next number."""
    place.lay("t2", "wait!")
    process = place.start("run", str(place.config_path))
    wait_for(lambda: len(place.calls()) == 2)
    second = place.run_here()
    assert second.returncode == 75
    folder = Layout(place.workdir).runs
    assert len([path for path in folder.iterdir() if not path.is_symlink()]) == 1
    kill(process)
    place.lift("t2")
    assert place.run_here().returncode == 0
    assert newest(place).folder.resolve().name.startswith("002_")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@host/x", f"https://{LEFT_OUT}@host/x"),
        ("see 1ftp://token@host and s3+x://a:b@c", f"see 1ftp://{LEFT_OUT}@host and s3+x://{LEFT_OUT}@c"),
        ("https://host/x@y", "https://host/x@y"),
        ("x" * 3_000_000, "x" * 3_000_000),
        ("a1" * 1_000_000 + "://", "a1" * 1_000_000 + "://"),
        ("://" * 1_000_000, "://" * 1_000_000),
    ],
    ids=range(6),
)
def test_credentials_in_addresses(text: str, shown: str) -> None:
    """They are left out, and a text of millions of letters is looked through once, not from each of them."""
    assert without_secrets(text) == shown
