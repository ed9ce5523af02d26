"""Vectors that the model must give: in doctor, plan and run, and the file of them that audit writes."""

import json
from pathlib import Path

import pytest

from harness import Workplace


def prepare(workplace: Workplace, salt: str = "", **keys: object) -> None:
    """A config with an encoder whose vectors the salt decides."""
    workplace.write_source([f"text {number}" for number in range(20)])
    workplace.write_config("random_weights:steady", model__kwargs={"salt": salt}, **keys)


def written(workplace: Workplace) -> Path:
    """The file that audit writes for the model without salt."""
    prepare(workplace)
    assert workplace.run().returncode == 0
    path = workplace.folder / "expected.jsonl"
    ended = workplace.call(
        "audit", str(workplace.config_path), "--rows", "12", "--write-expect", str(path)
    )
    assert ended.returncode == 0, ended.stderr
    assert "10 texts with the vectors that the model gives now" in ended.stdout
    again = workplace.call(
        "audit", str(workplace.config_path), "--rows", "3", "--write-expect", str(path)
    )
    assert (again.returncode, f"{path} already exists" in again.stderr) == (78, True)
    return path


def test_a_model_that_gives_other_vectors_is_refused(workplace: Workplace) -> None:
    """A run and the doctor name text, cosine and file, and nothing is encoded; with the same vectors they go on."""
    path = written(workplace)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [len(line["vector"]) for line in lines] == [32] * 10
    assert {line["text"] for line in lines} <= {f"text {number}" for number in range(20)}

    prepare(workplace, model__expect="expected.jsonl", workdir="again")
    ended = workplace.run()
    assert ended.returncode == 0, ended.stderr
    assert "the model gives the vectors of 10 texts in" in ended.stderr
    doctor = workplace.call("doctor", str(workplace.config_path), "--json")
    assert {each["check"]: each["state"] for each in json.loads(doctor.stdout)["findings"]}[
        "expect"
    ] == "ok"

    prepare(workplace, "other", model__expect="expected.jsonl", workdir="other")
    ended = workplace.run()
    assert ended.returncode == 78
    for words in ("10 of 10 vectors in", "expected.jsonl are others", "cosine", "'text ", "line "):
        assert words in ended.stderr
    assert not list((workplace.folder / "other").rglob("*.npy"))
    doctor = workplace.call("doctor", str(workplace.config_path), "--json")
    assert doctor.returncode == 78
    (found,) = [each for each in json.loads(doctor.stdout)["findings"] if each["check"] == "expect"]
    assert "cosine" in found["meaning"]


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
    command = "run" if content is None else "plan"
    ended = workplace.call(command, str(workplace.config_path))
    told = " ".join((ended.stdout + ended.stderr).split())
    assert ended.returncode == 78, told
    assert "expected.jsonl" in told
    assert words in told


def test_weights_that_are_random_in_each_process_show(workplace: Workplace) -> None:
    """The doctor loads the model twice; that it has other weights each time is a fault of the config."""
    prepare(workplace)
    workplace.write_config("random_weights:drawn")
    ended = workplace.call("doctor", str(workplace.config_path))
    assert ended.returncode == 78, ended.stdout
    assert (
        "two processes that load the model give the same text vectors that differ by"
        in " ".join(ended.stdout.split())
    )
