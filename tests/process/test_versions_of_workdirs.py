"""Workdirs of earlier versions of chunkvisor, and of later ones: gone on with, or refused by name."""

import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from chunkvisor.events.event import JOURNAL
from chunkvisor.store.layout import Layout
from chunkvisor.store.lock import read_note
from chunkvisor.store.seal import read_sealed, write_sealed
from harness import Workplace, local_engine_only, vector_of
from lostwrites.judge import Server
from soaked import wide
from versions.make import HERE, STATES, State, lay_out
from versions.shapes import GOLDEN, merged, shapes_of, shapes_of_events

pytestmark = local_engine_only
ARCHIVES = sorted(HERE.glob("*/*.tar.gz"))
RUN = ("chunkvisor", "run", "config.yaml")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Runs commands without a new interpreter for each."""
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


def unpack(archive: Path, folder: Path) -> State:
    """The workdir of an earlier version, with config, source and encoder beside it."""
    state = STATES[archive.name.removesuffix(".tar.gz")]
    lay_out(state, folder)
    (folder / "left-leave0").touch()
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "work", filter="data")
    return state


def expected(state: State) -> np.ndarray:
    """The right vectors; NaN for what cannot be encoded."""
    bad = np.full(8, np.nan, dtype=np.float32)
    return np.stack([bad if text.startswith("poison") else vector_of(text) for text in state.texts])


def encoded(folder: Path) -> set[str]:
    """Every text that the encoder was asked for."""
    path = folder / "calls.jsonl"
    calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {text for call in calls for text in call}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def test_an_earlier_workdir_is_gone_on_with(archive: Path, server: Server, tmp_path: Path) -> None:
    """The run completes with the right bytes and encodes nothing that was committed; the other commands can read it."""
    state = unpack(archive, tmp_path / "place")
    for command in ("status", "verify"):
        looked = server.ask(tmp_path / "place", ("chunkvisor", command, "work"))
        assert looked["code"] in (0, 3), looked["stderr"]
    ended = server.ask(tmp_path / "place", RUN)
    assert ended["code"] in state.later, ended["stderr"]
    final = np.load(io.BytesIO((tmp_path / "place" / "work" / "out.npy").read_bytes()), allow_pickle=False)
    np.testing.assert_array_equal(final, expected(state))
    assert not encoded(tmp_path / "place").intersection(state.committed)
    assert server.ask(tmp_path / "place", ("chunkvisor", "verify", "work"))["code"] == 0


@pytest.mark.parametrize("removed", [False, True], ids=["texts there", "texts removed"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["its own workdir", "another workdir"])
def test_texts_of_an_earlier_version_are_found(server: Server, tmp_path: Path, elsewhere: bool, removed: bool) -> None:
    """A finished output of the first version, which indexed no texts, serves another one if its texts are there."""
    place = tmp_path / "place"
    unpack(ARCHIVES[0].with_name("finished.tar.gz"), place)
    assert not (place / "work" / "outputs" / "out" / "table" / "index.bin").exists()
    if removed:
        (place / "work" / "outputs" / "out" / "table" / "texts.bin").unlink()
    before = {path: path.stat().st_mtime_ns for path in (place / "work").rglob("*")}
    (place / "more.jsonl").write_text('{"text": "t3"}\n{"text": "new"}\n')
    config = yaml.safe_load((place / "config.yaml").read_text())
    # `out`, too, would be read again, and indexed.
    config["outputs"] = {"more": {"source": "more.jsonl", "column": "text"}}
    config |= {"workdir": "other", "reuse_from": ["work"]} if elsewhere else {}
    (place / "config.yaml").write_text(yaml.safe_dump(config))
    planned = Workplace(place).here("plan", str(place / "config.yaml"), "--json")
    ended = server.ask(place, RUN)
    assert ended["code"] == 0, ended["stderr"]
    final = np.load(place / config["workdir"] / "more.npy", allow_pickle=False)
    np.testing.assert_array_equal(final, np.stack([vector_of("t3"), vector_of("new")]))
    known = json.loads(planned.stdout)["outputs"]["more"]["texts_known"]
    if removed:
        assert (known, encoded(place)) == (0, {"t3", "new"})
        assert "it has no index of its texts, and they have been removed" in ended["stderr"]
    else:
        assert (known, encoded(place)) == (1, {"new"})
        assert "had no index, and were indexed" in ended["stderr"]
    if elsewhere:
        assert {path: path.stat().st_mtime_ns for path in (place / "work").rglob("*")} == before


def test_every_state_of_every_version_is_here() -> None:
    """No archive is missing."""
    names = {path.parent.name for path in ARCHIVES}
    assert len(names) >= 2
    assert len(ARCHIVES) == len(names) * len(STATES)


@pytest.fixture(scope="module")
def present(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A place for each state, made by the present code."""
    made = {}
    for name, state in STATES.items():
        folder = made[name] = tmp_path_factory.mktemp("present") / "place"
        lay_out(state, folder)
        ended = server.ask(folder, (*RUN, *state.options))
        assert ended["code"] == state.code, ended["stderr"]
    return made


def test_no_shape_changes_without_a_new_version(present: dict[str, Path]) -> None:
    """No kind of state file has a key, or a type of it, that tests/versions/shapes.json lacks under its version."""
    golden: dict[str, Any] = json.loads(GOLDEN.read_text())
    found = merged([shapes_of(place / "work") for place in present.values()])
    for kind, versions in found.items():
        for version, keys in versions.items():
            new = sorted({*keys}.difference(golden.get(kind, {}).get(version, ())))
            assert not new, (
                f"{kind}, version {version}, has what {GOLDEN} does not know: {new}. Where an older chunkvisor could "
                "misread it, count its version on (`version=` of write_sealed, WIRE); then note it there."
            )
            assert version == max(golden[kind], key=int), f"{kind}: {version} is not the newest in {GOLDEN}"


def test_no_event_changes_without_a_new_version() -> None:
    """What a line of the journal holds is noted; to change a field or to take one away counts JOURNAL on."""
    golden = json.loads(GOLDEN.read_text())["events.jsonl"]
    found, noted = shapes_of_events(), golden.get(str(JOURNAL), [])
    words = f"{GOLDEN} has other events under version {JOURNAL} of the journal"
    assert not set(noted).difference(found), f"{words}: a field is gone or has another type; count JOURNAL on"
    assert not set(found).difference(noted), f"{words}: note what was added"
    assert str(JOURNAL) == max(golden, key=int)


def test_notes_of_a_newer_version_tell_nothing(present: dict[str, Path], server: Server, tmp_path: Path) -> None:
    """A lock that a newer version has noted its run in is free where nobody holds it, and nobody is ended for it."""
    place = tmp_path / "place"
    shutil.copytree(present["finished"], place, symlinks=True)
    lock = Layout(place / "work").lock
    note = json.loads(lock.read_text())
    assert note["version"] == 1
    assert read_note(lock) is not None
    lock.write_text(json.dumps({**note, "version": 2}))
    assert read_note(lock) is None
    assert server.ask(place, ("chunkvisor", "status", "work"))["code"] == 0
    assert server.ask(place, RUN)["code"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("state_name", ["taken-apart", "finished", *wide("half-done", "quarantined")])
def test_a_newer_record_is_refused_by_name(
    present: dict[str, Path], server: Server, state_name: str, tmp_path: Path
) -> None:
    """Whichever record a newer version has written: 78, the file by its name, and nothing is overwritten."""
    for number, path in enumerate(sorted((present[state_name] / "work").rglob("*.json"))):
        name = path.relative_to(present[state_name])
        if "record_version" not in json.loads(path.read_text()):
            continue
        place = tmp_path / str(number)
        shutil.copytree(present[state_name], place, symlinks=True)
        content = read_sealed(place / name)
        assert content is not None
        write_sealed(place / name, content, version=99)
        before = (place / name).read_bytes()
        ended = server.ask(place, RUN)
        assert "Traceback" not in ended["stderr"]
        if ended["code"] != 78:  # a record that this run has no need of
            assert ended["code"] in STATES[state_name].later, (name, ended["stderr"])
            assert name.name in ("published.json", "facts.json", "table.json", "staged.json", "000002.json"), name
        else:
            assert "was written by a newer version of chunkvisor" in ended["stderr"]
            assert name.name in ended["stderr"]
            assert "install the newer version again" in ended["stderr"]
            assert (place / name).read_bytes() == before
