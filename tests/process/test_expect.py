"""Vectors that the model must give: in doctor, plan and run, and the file of them that audit
writes.
"""

import json
from pathlib import Path

import pytest

from harness import Workplace, events_in


def prepare(workplace: Workplace, salt: str = "", **keys: object) -> None:
    """A config with an encoder whose vectors the salt decides."""
    workplace.prepare(
        [f"text {number}" for number in range(20)],
        "random_weights:steady",
        model__kwargs={"salt": salt},
        **keys,
    )


def written(workplace: Workplace) -> Path:
    """The file that audit writes for the model without salt."""
    prepare(workplace)
    workplace.ends(0)
    path = workplace.folder / "expected.jsonl"
    ended = workplace.does("audit", "--rows", "12", "--write-expect", str(path))
    assert "10 texts with the vectors that the model gives now" in ended.stdout
    again = workplace.does("audit", "--rows", "3", "--write-expect", str(path), code=78)
    assert f"{path} already exists" in again.stderr
    return path


def finding(workplace: Workplace, code: int) -> dict[str, str]:
    """What the doctor, which ends with that code, finds of the expected vectors."""
    doctor = workplace.does("doctor", "--json", code=code)
    (found,) = [each for each in json.loads(doctor.stdout)["findings"] if each["check"] == "expect"]
    return dict(found)


def test_a_model_that_gives_other_vectors_is_refused(workplace: Workplace) -> None:
    """A run and the doctor name text, cosine and file, and nothing is encoded; with the same
    vectors they go on.
    """
    path = written(workplace)
    lines = events_in(path)
    assert [len(line["vector"]) for line in lines] == [32] * 10
    assert {line["text"] for line in lines} <= {f"text {number}" for number in range(20)}

    prepare(workplace, model__expect="expected.jsonl", workdir="again")
    assert "the model gives the vectors of 10 texts in" in workplace.ends(0).stderr
    assert finding(workplace, 0)["state"] == "ok"

    prepare(workplace, "other", model__expect="expected.jsonl", workdir="other")
    ended = workplace.ends(78)
    for words in ("10 of 10 vectors in", "expected.jsonl are others", "cosine", "'text ", "line "):
        assert words in ended.stderr
    assert not list((workplace.folder / "other").rglob("*.npy"))
    assert "cosine" in finding(workplace, 78)["meaning"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"text": "a", "vector": [1, 2]}\n{"text": "b", "vector": [1]}\n', "line 2"),
        ('{"vector": [1, 2]}\n', "must have a text"),
        ('{"text": "a", "vector": [1, "two"]}\n', "finite numbers"),
        ('{"text": "a", "vector": [0.0]}\n', "finite numbers"),
        (None, "cannot be read"),
    ],
)
def test_a_malformed_file_is_refused(workplace: Workplace, content: str | None, words: str) -> None:
    """By its name and the line that is wrong, before a worker starts; by the plan as by a run."""
    if content is not None:
        (workplace.folder / "expected.jsonl").write_text(content)
    prepare(workplace, model__expect="expected.jsonl")
    ended = workplace.does("run" if content is None else "plan", code=78)
    assert "expected.jsonl" in ended.words
    assert words in ended.words


def test_weights_that_are_random_in_each_process_show(workplace: Workplace) -> None:
    """The doctor loads the model twice; that it has other weights each time is a fault of the
    config.
    """
    prepare(workplace)
    workplace.write_config("random_weights:drawn")
    ended = workplace.does("doctor", code=78)
    told = "two processes that load the model give the same text vectors that differ by"
    assert told in ended.words
