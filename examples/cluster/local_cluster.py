"""A Ray cluster whose nodes are all on this machine, for the demo, the tests and the benchmarks.

It never joins a cluster that is there already.
"""

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STORE_BYTES = 80 << 20
"""Of each node's object store: the least that Ray takes, and enough."""


class LocalCluster:
    """Nodes that come and go.

    Each stands for a machine, and has that number of processors for Ray.
    """

    def __init__(self, nodes: int, head_cores: int = 1) -> None:
        """The first node is the head; with no processors it gets no work."""
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        logging.getLogger("ray").setLevel(logging.WARNING)
        # Short: the path of a socket below it must not exceed 107 characters.
        self._folder = tempfile.mkdtemp(prefix="ray-")
        # Ray notes the address of the last cluster that was started, so that `ray.init()` finds it.
        # That of another cluster on this machine is to stay as it is, and where there was none Ray
        # does not make the folder for it.
        os.environ["RAY_TMPDIR"] = self._folder
        Path(self._folder, "ray").mkdir()
        head = {
            "num_cpus": head_cores,
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
        }
        self._cluster: Any = Cluster(
            initialize_head=True, head_node_args={**head, "temp_dir": self._folder}
        )
        self.workers: list[Any] = []
        for _ in range(nodes - 1):
            self.add()

    @property
    def address(self) -> str:
        """For `engine.address`."""
        return str(self._cluster.address)

    def add(self, gpus: int = 0) -> None:
        """One more node joins; Ray believes it the GPUs."""
        self.workers.append(
            self._cluster.add_node(num_cpus=1, num_gpus=gpus, object_store_memory=STORE_BYTES)
        )

    def kill(self, name: str = "") -> None:
        """A node dies, as if it had lost power: all its processes get a SIGKILL.

        The one that chunkvisor names so, or the oldest but the head.
        """
        node = next(node for node in self.workers if not name or f"({node.node_id[:6]})" in name)
        self.workers.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """End all nodes, and leave nothing behind."""
        self._cluster.shutdown()
        os.environ.pop("RAY_TMPDIR", None)
        deadline_s = time.monotonic() + 10
        while time.monotonic() < deadline_s and os.path.exists(self._folder):  # noqa: PTH110 - daemons still write logs
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def local_cluster(nodes: int, head_cores: int = 1) -> Iterator[LocalCluster]:
    """A cluster while the context lasts."""
    cluster = LocalCluster(nodes, head_cores)
    try:
        yield cluster
    finally:
        cluster.close()
