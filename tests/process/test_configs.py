"""The example configs, planned and run on small sources of the same shape."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from chunkvisor.config.load import load
from harness import ENCODERS, ROOT, Workplace, expected, path_with, write_lines

TESTCASES = [
    ("log in", "open, type, enter", '["fix: login", "add a test"]'),
    ("", "", ""),
    ("log out", "click", '["fix: login"]'),
]
COMMITS = ["fix: login\nadd a test", "", "fix: login"]


def prepare(workplace: Workplace, name: str, encoder: str) -> list[str]:
    """Write config and sources, three rows each; return what to add to a command, for a small
    encoder on the CPU.
    """
    for folder in (workplace.folder / "datasets", workplace.folder / "configs" / "datasets"):
        folder.mkdir(parents=True)
        for part in ("train", "val", "test"):
            with (folder / f"{part}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("TE_Summary", "TC_Steps", "commit"), *TESTCASES])
    data = workplace.folder / "quickstart" / "data"
    data.mkdir(parents=True)
    rows = [
        {"name": f"module.f{number}", "kind": "function", "doc": f"Does {number}."}
        for number in range(3)
    ]
    write_lines(data / "docstrings.jsonl", rows)
    config = workplace.folder / "configs" / f"{name}.yaml"
    config.write_text((ROOT / "configs" / f"{name}.yaml").read_text())
    path = f"env.PYTHONPATH={path_with(ENCODERS)}"
    changes = (f"model.encoder={encoder}", "device=cpu", "workdir=../work", path)
    return [str(config), *(f"--set={change}" for change in changes)]


@pytest.mark.parametrize("name", ["quickstart", "qodo_tc_commit", "debug_cuda"])
def test_example_config_runs(workplace: Workplace, name: str) -> None:
    """With sources in place, and a small encoder instead of the model, each example is planned and
    finishes.
    """
    given = prepare(workplace, name, "good:make")
    planned = workplace.call("plan", *given, code=0)
    workplace.call("run", *given, code=0)
    finals = {path.stem: np.load(path) for path in workplace.workdir.glob("*.npy")}
    assert all(len(final) == 3 for final in finals.values())
    if name == "qodo_tc_commit":
        assert len(finals) == 9
        assert "\nall: 18 rows, " in planned.stdout
        assert (
            "\ntrain_embeddings: train_tc_embeddings and train_commit_embeddings side by side\n"
            in planned.stdout
        )
        prompts = [f"Summary: {summary}\nSteps: {steps}" for summary, steps, _ in TESTCASES]
        both = [finals["train_tc_embeddings"], finals["train_commit_embeddings"]]
        for vectors, texts in zip(both, (prompts, COMMITS), strict=True):
            right = expected(texts)
            right /= np.linalg.norm(right, axis=1, keepdims=True)  # the config normalizes
            np.testing.assert_allclose(vectors, right, atol=1e-6)
        np.testing.assert_array_equal(finals["train_embeddings"], np.hstack(both))


def test_the_hunt_for_a_fault_stops_at_it(workplace: Workplace) -> None:
    """As the comments of debug_cuda.yaml say: one try for each cause, and the run ends at the row,
    by name.
    """
    given = prepare(workplace, "debug_cuda", "deadly:make")
    workplace.write_source(["one", "two", "bad", "three"])
    source = f"--set=outputs.suspects.source={workplace.source}"
    given += [source, "--set=outputs.suspects.sql=text"]
    ended = workplace.call("run", *given, code=78)
    assert f"a row cannot be encoded: {workplace.source}:3" in ended.stderr
    assert ended.stderr.count(", attempt ") == 1


@pytest.mark.model
@pytest.mark.parametrize(("bits", "lowest"), [(8, 0.99), (4, 0.9)])
def test_the_example_of_quantized_loading(
    workplace: Workplace, minilm_path: Path, bits: int, lowest: float
) -> None:
    """Both of its lines are right for a config; where bitsandbytes is installed, the vectors are
    about as near to those of float32 as it says.
    """
    text = (ROOT / "examples/quantized/quantized.yaml").read_text()
    (chosen,) = re.findall(rf"kwargs: (.*load_in_{bits}bit: true.*)", text)
    rows = [f"Commit {row}: fix the {row % 7}th bug in module {row % 5}" for row in range(20)]
    workplace.write_source(rows)
    name = {"model__name": str(minilm_path)}
    workplace.write_config("sentence-transformers", **name, model__kwargs=yaml.safe_load(chosen))
    load(workplace.config_path)
    pytest.importorskip("bitsandbytes")
    workplace.ends(0)
    quantized = workplace.vectors()
    workplace.write_config("sentence-transformers", **name)
    workplace.ends(0, "--from-scratch", "--yes")
    products = (quantized * workplace.vectors()).sum(axis=1)
    assert lowest < products.min() < 0.99999
