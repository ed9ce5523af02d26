"""A changed source costs only its new texts; the earlier final file stays valid until the new one
replaces it.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from killed import killed_anywhere
from scripted_workplace import ScriptedWorkplace, fixture_of, made_once

TEXTS = [f"t{number}" for number in range(12)]

CHANGES: dict[str, tuple[Callable[[list[str]], list[str]], list[str]]] = {
    "edited": (
        lambda texts: [f"{text}!" if text in ("t2", "t9") else text for text in texts],
        ["t2!", "t9!"],
    ),
    "repeated": (lambda texts: [text for text in texts for _ in range(2)], []),
    "all at once": (lambda texts: ["n0", *texts[:5:-1], "t1", "n1", "t1", "n0"], ["n0", "n1"]),
}


@made_once
def finished(folder: Path) -> ScriptedWorkplace:
    """A finished output."""
    made = ScriptedWorkplace.make(folder, TEXTS, chunk__size=4)
    made.ends(0)
    return made


place = fixture_of(finished)


def assert_final(place: ScriptedWorkplace, texts: list[str]) -> None:
    """Final file and manifest are those of the texts, as a fresh run would make them, and nothing
    lies about.
    """
    place.has(texts)
    assert place.manifest()["rows"] == len(texts)
    place.does("verify")
    assert not [path for path in place.hidden.iterdir() if path.name.startswith("out.")]


@pytest.mark.parametrize("change", CHANGES)
def test_changes(place: ScriptedWorkplace, tmp_path: Path, change: str) -> None:
    """Only new texts are encoded, as few chunks as they fill; without --update the change is
    refused by that name.
    """
    make, new = CHANGES[change]
    texts, before = make(TEXTS), len(place.encoded())
    place.write_source(texts)
    assert "--update" in place.ends(78).stderr
    assert_final(place, TEXTS)
    place.ends(0, "--update")
    assert sorted(place.encoded()[before:]) == sorted(new)
    assert place.named("output_opened")[-1]["chunks"] == -(-len(new) // 4)
    assert_final(place, texts)
    manifest = place.manifest()
    assert manifest["generation"] == 2
    assert sum(each["texts"] for each in manifest.get("reused", [])) == len(set(texts)) - len(new)
    fresh = ScriptedWorkplace.make(tmp_path / "fresh", texts, chunk__size=4)
    fresh.ends(0)
    assert fresh.final.read_bytes() == place.final.read_bytes()
    place.ends(0)
    place.ends(0, "--update")
    assert sorted(place.encoded()[before:]) == sorted(new)


def test_other_template(place: ScriptedWorkplace) -> None:
    """Another template is a change of the texts; another model or normalisation is refused with
    --update as well.
    """
    place.set(outputs__out={"source": str(place.source), "template": "{text}"})
    before = len(place.encoded())
    place.ends(78)
    place.ends(0, "--update")
    assert len(place.encoded()) == before
    assert_final(place, TEXTS)
    assert "--update" not in place.ends(78, "--update", "--set", "encode.prompt=x").stderr
    assert_final(place, TEXTS)


def test_source_that_changes_again(place: ScriptedWorkplace) -> None:
    """What a run has encoded that was to update stays encoded when the source changes once more."""
    before = len(place.encoded())
    place.write_source([*TEXTS, *(f"n{number}" for number in range(8)), "last"])
    place.lay("last", "crash!")
    stops = ("--set", "recovery.attempts=1", "--set", "recovery.on_bad_row=fail")
    place.ends(78, "--update", *stops)
    done = place.encoded()[before:]
    assert {f"n{number}" for number in range(8)} <= set(done)
    place.has(TEXTS)
    assert place.manifest()["rows"] == len(TEXTS)
    texts = ["m0", *(f"n{number}" for number in range(8)), *TEXTS[5:]]
    place.write_source(texts)
    place.ends(0, "--update")
    assert place.encoded()[before + len(done) :] == ["m0"]
    assert_final(place, texts)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_anywhere(place: ScriptedWorkplace, tmp_path: Path, when: str) -> None:
    """Killed at any change of a name or of a record, an update goes on with the same command or a plain run.

    Final file and manifest fit together after each kill, and no text is encoded twice.
    """
    texts = ["n0", *TEXTS[6:], *TEXTS[:2], "n1"]
    place.write_source(texts)
    share = f"4:{random.Random(0).random()}"
    update = "run config.yaml --update"
    for left in killed_anywhere(place, tmp_path / "scratch", when, share, command=update):
        assert_final(left, texts)
        assert sorted(set(left.encoded()[12:])) == ["n0", "n1"]
