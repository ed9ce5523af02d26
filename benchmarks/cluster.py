"""Measures the engine Ray on a cluster of three local nodes.

What it costs, and what it loses when nodes die.

    python benchmarks/cluster.py [--chunks 120] [--wait 1.0] [--minutes 5]

The encoder waits as if for a GPU, so that three nodes on one machine do not fight for its cores.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples" / "cluster"))

from local_cluster import LocalCluster, local_cluster  # noqa: E402 - found by the line above

NODES = 3
TEXTS_A_CHUNK = 8


def main() -> None:
    """Print the table; ends with 1 where a row is lost or wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--chunks", type=int, default=120, help="chunks of the first row (default: %(default)s)"
    )
    parser.add_argument(
        "--wait", type=float, default=1.0, help="seconds of a chunk there (default: %(default)s)"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=5,
        help="of nodes dying, one a minute (default: %(default)s)",
    )
    arguments = parser.parse_args()
    print("| bench | measured | goal |")
    print("| --- | --- | --- |")
    with (
        tempfile.TemporaryDirectory(prefix="chunkvisor-bench-") as folder,
        local_cluster(NODES) as cluster,
    ):
        print(
            throughput(cluster, Path(folder) / "throughput", arguments.chunks, arguments.wait),
            flush=True,
        )
    # The head is no node that dies here: a cluster without its head is none.
    with (
        tempfile.TemporaryDirectory(prefix="chunkvisor-bench-") as folder,
        local_cluster(NODES + 1, 0) as cluster,
    ):
        line, wrong = deaths(cluster, Path(folder) / "deaths", arguments.minutes)
    print(line)
    sys.exit(bool(wrong))


def throughput(cluster: LocalCluster, folder: Path, chunks: int, wait_s: float) -> str:
    """Time between the first and the last commit, against nodes that never pause."""
    config = write(folder, cluster, chunks, wait_s)
    if code := subprocess.call(command(config), stderr=subprocess.DEVNULL):
        sys.exit(f"the run ended with {code}")
    commits = times(folder, "chunk_committed")
    # The first commit of each node ends its start; from then on every node does a chunk each
    # `wait_s`.
    elapsed_s = commits[-1] - commits[NODES - 1]
    ideal_s = (chunks - NODES) * wait_s / NODES
    overhead_s = elapsed_s * NODES / (chunks - NODES) - wait_s
    share = ideal_s / elapsed_s
    return (
        f"| Ray, {NODES} local nodes, {chunks} chunks of {wait_s} s | {share:.2f} of ideal, "
        f"{1000 * overhead_s:.0f} ms a chunk over it | ≥ 0.9, ≤ 100 ms |"
    )


def deaths(cluster: LocalCluster, folder: Path, minutes: float) -> tuple[str, int]:
    """(line of the table, rows lost or wrong) of a run in which a node dies each minute and another takes its place."""
    wait_s = 1.0
    chunks = int((60 * minutes + 30) * NODES / wait_s)
    config = write(folder, cluster, chunks, wait_s)
    run = subprocess.Popen(command(config), stderr=subprocess.DEVNULL)
    killed, began_s = 0, time.monotonic()
    while run.poll() is None:
        time.sleep(0.2)
        if killed < round(minutes) and time.monotonic() - began_s > 60 * (killed + 1) - 30:
            cluster.kill()
            cluster.add()
            killed += 1
    if run.returncode:
        sys.exit(f"the run ended with {run.returncode}")
    found = np.load(folder / "work" / "out.npy", allow_pickle=False)
    wanted = expected(chunks)
    wrong = int((found != wanted).any(axis=1).sum()) if found.shape == wanted.shape else len(wanted)
    lost = sum(event["outcome"] == "lost" for event in journal(folder, "attempt_failed"))
    line = (
        f"| Ray, a node killed each minute, {killed} times, {len(wanted)} rows | {wrong} rows lost "
        f"or wrong, "
        f"{lost} attempts made again | 0 |"
    )
    return line, wrong


def write(folder: Path, cluster: LocalCluster, chunks: int, wait_s: float) -> Path:
    """Source and config of a run."""
    folder.mkdir()
    lines = (json.dumps({"text": text}) + "\n" for text in texts(chunks))
    (folder / "texts.jsonl").write_text("".join(lines))
    config: dict[str, Any] = {
        "workdir": "work",
        "model": {"name": "trivial", "encoder": "trivial:make", "kwargs": {"wait_s": wait_s}},
        "device": "cpu",
        "engine": {"kind": "ray", "address": cluster.address},
        "chunk": {"size": TEXTS_A_CHUNK},
        "encode": {"batch_size": TEXTS_A_CHUNK},
        "env": {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": 1},
        "outputs": {"out": {"source": "texts.jsonl", "column": "text"}},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def texts(chunks: int) -> list[str]:
    """All different, of many lengths: the vector of a text is its length."""
    return [f"{number} " + "x" * (number * 7919 % 1000) for number in range(chunks * TEXTS_A_CHUNK)]


def expected(chunks: int) -> Any:
    """What trivial.py makes of them."""
    lengths = np.array([len(text) for text in texts(chunks)], dtype=np.float32)
    return lengths[:, None] + np.arange(1, 9, dtype=np.float32)


def command(config: Path) -> list[str]:
    """`chunkvisor run`, under this interpreter."""
    return [sys.executable, "-c", "from chunkvisor.cli import main; main()", "run", str(config)]


def journal(folder: Path, name: str) -> list[dict[str, Any]]:
    """The events of that name."""
    events = map(
        json.loads,
        filter(None, (folder / "work" / ".chunkvisor" / "events.jsonl").read_text().splitlines()),
    )
    return [event for event in events if event["event"] == name]


def times(folder: Path, name: str) -> list[float]:
    """When they were, seconds."""
    return [event["t"] for event in journal(folder, name)]


if __name__ == "__main__":
    main()
