"""A changed source costs only its new texts; the earlier final file stays valid until the new one
replaces it.
"""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from harness import SOAK_SEED, expected, sweep
from scripted_workplace import ScriptedWorkplace

TEXTS = [f"t{number}" for number in range(12)]

CHANGES: dict[str, tuple[Callable[[list[str]], list[str]], list[str]]] = {
    "edited": (
        lambda texts: [f"{text}!" if text in ("t2", "t9") else text for text in texts],
        ["t2!", "t9!"],
    ),
    "repeated": (lambda texts: [text for text in texts for _ in range(2)], []),
    "all at once": (lambda texts: ["n0", *texts[:5:-1], "t1", "n1", "t1", "n0"], ["n0", "n1"]),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ScriptedWorkplace:
    """A finished output, to be copied."""
    made = ScriptedWorkplace.make(
        tmp_path_factory.mktemp("finished") / "place", TEXTS, chunk__size=4
    )
    assert made.run_here().returncode == 0
    return made


def calls(place: ScriptedWorkplace) -> list[str]:
    """The texts that were encoded so far."""
    return [text for call in place.calls() for text in call]


def assert_final(place: ScriptedWorkplace, texts: list[str]) -> None:
    """Final file and manifest are those of the texts, as a fresh run would make them, and nothing
    lies about.
    """
    np.testing.assert_array_equal(place.vectors(), expected(texts))
    assert place.manifest()["rows"] == len(texts)
    ended = place.here("verify", str(place.workdir))
    assert ended.returncode == 0, ended.stdout
    assert not [path for path in place.hidden.iterdir() if path.name.startswith("out.")]


@pytest.mark.parametrize("change", CHANGES)
def test_changes(finished: ScriptedWorkplace, tmp_path: Path, change: str) -> None:
    """Only new texts are encoded, as few chunks as they fill; without --update the change is
    refused by that name.
    """
    place = finished.copy(tmp_path / "place")
    make, new = CHANGES[change]
    texts, before = make(TEXTS), len(calls(place))
    place.write_source(texts)
    refused = place.run_here()
    assert refused.returncode == 78
    assert "--update" in refused.stderr
    assert_final(place, TEXTS)
    ended = place.run_here("--update")
    assert ended.returncode == 0, ended.stderr
    assert sorted(calls(place)[before:]) == sorted(new)
    opened = next(each for each in reversed(place.events()) if each["event"] == "output_opened")
    assert opened["chunks"] == -(-len(new) // 4)
    assert_final(place, texts)
    manifest = place.manifest()
    assert manifest["generation"] == 2
    assert sum(each["texts"] for each in manifest.get("reused", [])) == len(set(texts)) - len(new)
    fresh = ScriptedWorkplace.make(tmp_path / "fresh", texts, chunk__size=4)
    assert fresh.run_here().returncode == 0
    assert (fresh.workdir / "out.npy").read_bytes() == (place.workdir / "out.npy").read_bytes()
    assert place.run_here().returncode == 0
    assert place.run_here("--update").returncode == 0
    assert sorted(calls(place)[before:]) == sorted(new)


def test_other_template(finished: ScriptedWorkplace, tmp_path: Path) -> None:
    """Another template is a change of the texts; another model or normalisation is refused with
    --update as well.
    """
    place = finished.copy(tmp_path / "place")
    config = yaml.safe_load(place.config_path.read_text())
    del config["outputs"]["out"]["column"]
    config["outputs"]["out"]["template"] = "{text}"
    place.config_path.write_text(yaml.safe_dump(config))
    before = len(calls(place))
    assert place.run_here().returncode == 78
    assert place.run_here("--update").returncode == 0
    assert len(calls(place)) == before
    assert_final(place, TEXTS)
    ended = place.run_here("--update", "--set", "encode.prompt=x")
    assert ended.returncode == 78
    assert "--update" not in ended.stderr
    assert_final(place, TEXTS)


def test_source_that_changes_again(finished: ScriptedWorkplace, tmp_path: Path) -> None:
    """What a run has encoded that was to update stays encoded when the source changes once more."""
    place = finished.copy(tmp_path / "place")
    before = len(calls(place))
    place.write_source([*TEXTS, *(f"n{number}" for number in range(8)), "last"])
    place.lay("last", "crash!")
    stops = ("--set", "recovery.attempts=1", "--set", "recovery.on_bad_row=fail")
    assert place.run_here("--update", *stops).returncode not in (0, 3)
    done = calls(place)[before:]
    assert {f"n{number}" for number in range(8)} <= set(done)
    np.testing.assert_array_equal(place.vectors(), expected(TEXTS))
    assert place.manifest()["rows"] == len(TEXTS)
    texts = ["m0", *(f"n{number}" for number in range(8)), *TEXTS[5:]]
    place.write_source(texts)
    ended = place.run_here("--update")
    assert ended.returncode == 0, ended.stderr
    assert calls(place)[before + len(done) :] == ["m0"]
    assert_final(place, texts)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_anywhere(finished: ScriptedWorkplace, tmp_path: Path, when: str) -> None:
    """Killed at any change of a name or of a record, an update goes on with the same command or a
    plain run.

    Final file and manifest fit together after each kill, and no text is encoded twice.
    """
    place = finished.copy(tmp_path / "place")
    texts = ["n0", *TEXTS[6:], *TEXTS[:2], "n1"]
    place.write_source(texts)
    targets = (
        "pathlib:Path.rename",
        "pathlib:Path.replace",
        "pathlib:Path.unlink",
        "shutil:rmtree",
    )
    chance = random.Random(SOAK_SEED or 0)
    share = "1:" if SOAK_SEED else f"4:{chance.random()}"
    told = sweep(
        "each",
        when,
        place.folder,
        tmp_path / "scratch",
        *targets,
        command="run config.yaml --update",
        share=share,
    )
    assert len(told) > 3
    for line in told:
        left = ScriptedWorkplace(Path(line["folder"]))
        assert line["returncode"] == 0, (line["call"], line["stderr"])
        assert_final(left, texts)
        assert sorted(set(calls(left)[12:])) == ["n0", "n1"], line["call"]
