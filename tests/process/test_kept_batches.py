"""What is encoded stays encoded: however an attempt ends, its finished batches are taken over and
not made again.
"""

from collections import Counter
from pathlib import Path

import pytest

from harness import local_engine_only
from scripted_workplace import ScriptedWorkplace

MANY = [f"text {number}" for number in range(1000)]


def workplace(folder: Path, texts: list[str], **changes: object) -> ScriptedWorkplace:
    """A chunk of all texts, in calls of 32 texts: four batches of eight."""
    return ScriptedWorkplace.make(
        folder, texts, **{"chunk__size": len(texts), "encode__batch_size": 8, **changes}
    )


def twice(place: ScriptedWorkplace) -> set[str]:
    """The texts that were encoded more than once."""
    return {text for text, count in Counter(place.encoded()).items() if count > 1}


def test_one_text_that_kills_costs_few_attempts_and_no_text_twice(tmp_path: Path) -> None:
    """Of 1,000: at most 8 attempts, and at most 1.1 encodings for each good text (how-it-works.md
    says so).
    """
    place = workplace(tmp_path / "place", MANY)
    place.lay("text 777", "crash!")

    place.gives(MANY, bad=[777])
    assert len(place.named("attempt_started")) <= 8
    encoded = Counter(place.encoded())
    del encoded["text 777"]
    assert sum(encoded.values()) <= 1.1 * 999


@pytest.mark.parametrize("fault", ["crash", "oom", "device_assert"])
def test_an_attempt_that_fails_once_is_gone_on_with(tmp_path: Path, fault: str) -> None:
    """Only the call under way is made again, and the next attempt gets no text that has its vector."""
    texts = MANY[:200]
    place = workplace(tmp_path / "place", texts)
    place.lay("text 150", fault)

    place.gives(texts)
    assert twice(place) <= {*texts[128:160], "text 0"}  # a canary
    assert [event["texts"] for event in place.named("batches_kept")] == [128]


@local_engine_only
@pytest.mark.parametrize("ended_by", ["kill", "second SIGTERM"])
def test_a_run_that_ends_at_once_keeps_its_batches(tmp_path: Path, ended_by: str) -> None:
    """The next run goes on behind what the worker of a killed or stopped run had written."""
    texts = MANY[:200]
    place = workplace(tmp_path / "place", texts)
    if ended_by == "kill":
        place.lay("text 150", "kill_both")
        assert place.apart().returncode != 0
    else:
        place.lay("text 150", "wait")
        process = place.begin_to(5)
        assert place.stop(process).returncode == 143
    place.gives(texts)
    assert twice(place) <= set(texts[128:160])
