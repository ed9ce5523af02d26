"""`python -m chunkvisor.engine.ray.survey ADDRESS`: prints what a Ray cluster has, as one JSON object.

It is a process of its own because Ray ends the process that cannot go on.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass

from chunkvisor_worker.contract.wire import from_json

_TIMEOUT_S = 40.0


@dataclass(frozen=True, slots=True)
class Survey:
    """A cluster as it is now."""

    nodes: int = 0
    processors: int = 0
    gpus: int = 0
    problem: str = ""
    """Why nothing is known of it."""


def survey(address: str) -> Survey:
    """Ask the cluster, in a child with a time limit."""
    command = [sys.executable, "-P", "-m", "chunkvisor.engine.ray.survey", address]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        ended = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return Survey(problem=f"no answer within {_TIMEOUT_S:.0f} s")
    last = ended.stdout.splitlines()[-1] if ended.stdout.strip() else b""
    return from_json(Survey, last) or Survey(problem=f"the question ended with exit code {ended.returncode}")


def _ask(address: str) -> Survey:
    try:
        import ray

        from chunkvisor.engine.ray.bridge import connect, first_line
    except ImportError as error:
        return Survey(problem=str(error))
    try:
        connect(address)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return Survey(problem=first_line(error))
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    processors, gpus = (int(sum(each.get(name, 0) for each in alive)) for name in ("CPU", "GPU"))
    return Survey(len(alive), processors, gpus)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(_ask(sys.argv[1]))) + "\n")
    sys.stdout.flush()
    os._exit(0)
