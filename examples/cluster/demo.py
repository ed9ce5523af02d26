"""A cluster of three nodes on this machine, a real model, and a node that dies half-way.

`make cluster-demo`.

It never touches a cluster that is there already, and leaves no process behind; the final file
stays, to be looked at.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from local_cluster import LocalCluster, local_cluster

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ROWS = 600
CHUNK = 30
"""Texts in a chunk: twenty chunks, so that there is a half-way."""


def main() -> None:
    """Tell what happens, step by step.

    Ends with 1 where the result is not the same as without a cluster.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=HERE / "cache", help="for everything (default: %(default)s)"
    )
    folder = parser.parse_args().folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    prepare(folder)
    say(
        "Starting a Ray cluster of three nodes on this machine. Each stands for a machine with one "
        "processor."
    )
    with local_cluster(3) as cluster:
        code = run_with_a_death(cluster, folder)
    say("The cluster is gone, with all its processes.")
    if code:
        sys.exit(f"the run ended with {code}")
    say("Once more without a cluster, on this machine alone, to compare:")
    show(command("run", write_config(folder, "alone", None)))
    compare(folder)


def prepare(folder: Path) -> None:
    """The texts and the model of the quickstart."""
    say("Getting the texts and the model: docstrings of Python's library, all-MiniLM-L6-v2.")
    quickstart = ROOT / "quickstart"
    show(
        [
            sys.executable,
            str(quickstart / "harvest.py"),
            "--rows",
            str(ROWS),
            "--out",
            str(folder / "texts.jsonl"),
        ]
    )
    show([sys.executable, str(quickstart / "model.py"), "--out", str(folder / "all-MiniLM-L6-v2")])


def run_with_a_death(cluster: LocalCluster, folder: Path) -> int:
    """Run the job on the cluster and kill a node when half of the chunks are done.

    Returns the exit code.
    """
    config = write_config(folder, "cluster", cluster.address)
    say(
        "Running the job on it. Texts travel to the nodes and vectors come back; no folder is "
        "shared."
    )
    words = command("run", config)
    print("$ " + " ".join(words), flush=True)
    run = subprocess.Popen(words)
    journal = folder / "cluster" / "events.jsonl"
    half = ROWS // CHUNK // 2
    while run.poll() is None and len(events(journal, "chunk_committed")) < half:
        time.sleep(0.1)
    if run.poll() is None:
        say(
            "Half of the chunks are done. Now a node dies: SIGKILL to all its processes, as if it "
            "had lost power."
        )
        cluster.kill()
    code = run.wait()
    lost = events(journal, "node_lost")
    failed = [event["outcome"] for event in events(journal, "attempt_failed")]
    say(
        f"The run ended with exit code {code}. It lost {len(lost)} node, and with it "
        f"{failed.count('lost')} attempts, "
        "which were made again elsewhere and counted against no chunk."
    )
    return code


def compare(folder: Path) -> None:
    """Verify the final file, and hold it against that of the run without a cluster."""
    show(command("verify", folder / "cluster"))
    with_cluster, alone = (
        np.load(folder / name / "docstrings.npy") for name in ("cluster", "alone")
    )
    difference = float(np.abs(with_cluster - alone).max())
    rows, dimension = with_cluster.shape
    say(
        f"{rows} rows x {dimension}; largest difference to the run without a cluster: "
        f"{difference:.1e}."
    )
    if with_cluster.shape != alone.shape or difference > 1e-5:
        sys.exit("that is too much")
    print(f"The final file: {folder / 'cluster' / 'docstrings.npy'}")


def write_config(folder: Path, name: str, address: str | None) -> Path:
    """The config of a run, on a cluster or not."""
    config: dict[str, Any] = {
        "workdir": str(folder / name),
        "model": {"name": str(folder / "all-MiniLM-L6-v2")},
        "device": "cpu",
        "encode": {"normalize": True},
        "chunk": {"size": CHUNK},
        "outputs": {
            "docstrings": {"source": str(folder / "texts.jsonl"), "template": "{name}: {doc}"}
        },
    }
    if address is not None:
        config["engine"] = {"kind": "ray", "address": address}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def events(journal: Path, name: str) -> list[dict[str, Any]]:
    """Events of that name so far."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # it is just being written
        if event["event"] == name:
            found.append(event)
    return found


def command(name: str, path: Path) -> list[str]:
    """A command line of the chunkvisor that this interpreter has."""
    return [str(Path(sys.executable).with_name("chunkvisor")), name, str(path)]


def show(words: list[str]) -> None:
    """Run a command that has to succeed."""
    print("$ " + " ".join(words), flush=True)
    if code := subprocess.call(words):
        sys.exit(code)


def say(sentence: str) -> None:
    """Tell the person."""
    print(f"\n--- {sentence}", flush=True)


if __name__ == "__main__":
    main()
