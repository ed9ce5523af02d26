"""Vectors of different library versions: said once, and all versions are in the manifest."""

from pathlib import Path

import pytest

from scripted_workplace import ScriptedWorkplace

TEXTS = ["t0", "t1", "t2", "t0", "t0", "t3", "t4", "t5"]
"""Three chunks of two; the first text stands in three rows."""


@pytest.fixture
def begun(tmp_path: Path) -> ScriptedWorkplace:
    """An output of which the first two chunks were computed under the old torch."""
    place = ScriptedWorkplace.make(tmp_path / "place", TEXTS)
    configure(place, "2.13.0")
    place.lay("t4", "damage!")
    place.ends(75)
    place.lift("t4")
    return place


def configure(place: ScriptedWorkplace, torch: str, **changes: object) -> None:
    """The config, with this version of torch."""
    changes |= {"env.FAKE_TORCH": torch, "chunk.size": 2, "recovery.attempts": 1}
    place.write_config("versioned:make", **{"outputs.out.source": str(place.source), **changes})


def test_other_versions_are_told(begun: ScriptedWorkplace) -> None:
    """A resume under another torch completes; the run says so once, and the manifest has both."""
    configure(begun, "2.14.1")
    assert begun.gives(TEXTS).stderr.count("torch 2.13.0 before, 2.14.1 now") == 1
    manifest = begun.manifest()
    assert manifest["versions"]["torch"] == "2.13.0"
    assert [each["torch"] for each in manifest["other_versions"]] == ["2.14.1"]
    begun.ends(0)
