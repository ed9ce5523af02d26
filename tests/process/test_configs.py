"""The example configs, loaded, planned and run on small sources of the same shape."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest

from harness import ENCODERS, ROOT, Workplace, expected

TESTCASES = [
    ("log in", "open, type, enter", '["fix: login", "add a test"]'),
    ("", "", ""),
    ("log out", "click", '["fix: login"]'),
]
COMMITS = ["fix: login\nadd a test", "", "fix: login"]


@pytest.mark.parametrize("name", ["quickstart", "qodo_tc_commit", "debug_cuda"])
def test_example_config_runs(workplace: Workplace, name: str) -> None:
    """With sources in place, and a small encoder instead of the model, each example is planned and finishes."""
    folder = workplace.folder / "configs"
    folder.mkdir()
    config = folder / f"{name}.yaml"
    config.write_text((ROOT / "configs" / f"{name}.yaml").read_text())
    write_sources(workplace.folder)
    path = os.pathsep.join(filter(None, [str(ENCODERS), os.environ.get("PYTHONPATH")]))
    changes = ["model.encoder=good:make", "device=cpu", "workdir=../work", f"env.PYTHONPATH={path}"]
    options = [part for change in changes for part in ("--set", change)]

    planned = workplace.call("plan", str(config), *options, "--json")
    ended = workplace.call("run", str(config), *options)

    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["outputs"]
    assert ended.returncode == 0, ended.stderr
    finals = {path.stem: np.load(path) for path in workplace.workdir.glob("*.npy")}
    if name == "qodo_tc_commit":
        assert len(finals) == 9
        prompts = [f"Summary: {summary}\nSteps: {steps}" for summary, steps, _ in TESTCASES]
        for part in ("train", "val", "test"):
            both = [finals[f"{part}_tc_embeddings"], finals[f"{part}_commit_embeddings"]]
            for vectors, texts in zip(both, (prompts, COMMITS), strict=True):
                # The config normalizes.
                right = expected(texts)
                right /= np.linalg.norm(right, axis=1, keepdims=True)
                np.testing.assert_allclose(vectors, right, atol=1e-6)
            np.testing.assert_array_equal(finals[f"{part}_embeddings"], np.hstack(both))
    assert all(len(final) == 3 for final in finals.values())


def test_the_hunt_for_a_fault_stops_at_it(workplace: Workplace) -> None:
    """As the comments of debug_cuda.yaml say: one try for each cause, and the run ends at the row, by name."""
    config = workplace.folder / "debug_cuda.yaml"
    config.write_text((ROOT / "configs" / "debug_cuda.yaml").read_text())
    workplace.write_source(["one", "two", "bad", "three"])
    path = os.pathsep.join(filter(None, [str(ENCODERS), os.environ.get("PYTHONPATH")]))
    changes = ["model.encoder=picky:make", "device=cpu", "workdir=work", f"env.PYTHONPATH={path}"]
    changes += [f"outputs.suspects.source={workplace.source}", "outputs.suspects.sql=text"]
    options = [part for change in changes for part in ("--set", change)]

    ended = workplace.call("run", str(config), *options)

    assert ended.returncode == 78, ended.stderr
    assert f"a row cannot be encoded: {workplace.source}:3" in ended.stderr
    assert ended.stderr.count(", attempt ") == 1


def write_sources(folder: Path) -> None:
    """What the example configs name as sources, three rows each."""
    for datasets in (folder / "datasets", folder / "configs" / "datasets"):
        datasets.mkdir()
        for part in ("train", "val", "test"):
            with (datasets / f"{part}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("TE_Summary", "TC_Steps", "commit"), *TESTCASES])
    data = folder / "quickstart" / "data"
    data.mkdir(parents=True)
    rows = [{"name": f"module.f{number}", "kind": "function", "doc": f"Does {number}."} for number in range(3)]
    (data / "docstrings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
