"""Beginning from scratch takes nothing away before the new run can work, and nothing finished before it is replaced."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from harness import expected
from scripted_workplace import ScriptedWorkplace

TEXTS = ["t0", "t1", "t2", "t3"]
OTHERS = ["n0", "n1", "n2"]


@pytest.fixture
def place(tmp_path: Path) -> ScriptedWorkplace:
    """A finished output."""
    made = ScriptedWorkplace.make(tmp_path / "place", TEXTS, chunk__size=2, recovery__attempts=1)
    assert made.run_here().returncode == 0
    return made


def files(place: ScriptedWorkplace) -> dict[str, bytes]:
    """Final file, manifest and state, hidden ones as well."""
    told = {"lock", "events.jsonl", "report.html", "runs"}
    paths = {path.relative_to(place.workdir): path for path in place.workdir.rglob("*") if path.is_file()}
    return {str(name): path.read_bytes() for name, path in paths.items() if told.isdisjoint(name.parts)}


def change(place: ScriptedWorkplace, **output: str) -> None:
    """Other keys of the output."""
    config = yaml.safe_load(place.config_path.read_text())
    config["outputs"]["out"] |= output
    place.config_path.write_text(yaml.safe_dump(config))


def typo_in_column(place: ScriptedWorkplace) -> None:
    """A column that is not there."""
    change(place, column="txet")


def foreign_output(place: ScriptedWorkplace) -> None:
    """A second output whose place is taken."""
    config = yaml.safe_load(place.config_path.read_text())
    config["outputs"]["second"] = config["outputs"]["out"]
    place.config_path.write_text(yaml.safe_dump(config))
    (place.workdir / "second.npy").write_bytes(b"somebody's")


@pytest.mark.parametrize("spoil", [typo_in_column, foreign_output])
def test_a_beginning_that_comes_to_nothing(
    place: ScriptedWorkplace, spoil: Callable[[ScriptedWorkplace], None]
) -> None:
    """A config, source or model that is wrong ends the run with 78, and every file is as it was."""
    before = files(place)
    spoil(place)
    spoiled = {name for name in files(place) if name not in before}
    ended = place.run_here("--from-scratch")
    assert ended.returncode == 78, ended.stderr
    after = files(place)
    assert {name: after.get(name) for name in before} == before
    assert after.keys() - before.keys() == spoiled


def test_what_was_there_stays_until_it_is_replaced(place: ScriptedWorkplace) -> None:
    """While the new run has no final file the old one stays; all texts are encoded anew, with or without the flag."""
    final, before = (place.workdir / "out.npy").read_bytes(), len(place.calls())
    place.write_source([*TEXTS[:2], *OTHERS])
    place.lay("n2", "damage!")
    for flags in (["--from-scratch"], [], ["--from-scratch"]):
        ended = place.run_here(*flags)
        assert ended.returncode == 75, ended.stderr
        assert (place.workdir / "out.npy").read_bytes() == final
    place.lift("n2")
    ended = place.run_here()
    assert ended.returncode == 0, ended.stderr
    assert set(TEXTS[:2]) <= {text for call in place.calls()[before:] for text in call}
    assert place.vectors().tobytes() == expected([*TEXTS[:2], *OTHERS]).tobytes()
    assert not (place.hidden / "out.before").exists()


def test_killed_while_it_moves_on(place: ScriptedWorkplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the renames of the states loses nothing; the same command goes on."""
    final = (place.workdir / "out.npy").read_bytes()
    rename = Path.rename

    def die(path: Path, target: Path) -> Path:
        if path == place.hidden / "outputs/out":
            raise OSError(5, os.strerror(5), str(path))
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", die)
        assert place.run_here("--from-scratch").returncode == 74
    assert (place.workdir / "out.npy").read_bytes() == final
    assert place.run_here("--from-scratch").returncode == 0
    assert place.vectors().tobytes() == expected(TEXTS).tobytes()
