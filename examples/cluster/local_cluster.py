"""A Ray cluster whose nodes are all on this machine, for the demo, the tests and the benchmarks.

It never joins a cluster that is there already.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STORE_BYTES = 80 << 20
"""Of each node's object store: the least that Ray takes, and enough."""


class LocalCluster:
    """Nodes that come and go; each stands for a machine, and is told that it has so many processors."""

    def __init__(self, nodes: int, cores: int = 1) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        self._cores = cores
        # Short: the path of a socket below it must not exceed 107 characters.
        self._folder = tempfile.mkdtemp(prefix="ray-")
        head = {"num_cpus": cores, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args={**head, "temp_dir": self._folder})
        self.workers: list[Any] = []
        for _ in range(nodes - 1):
            self.add()

    @property
    def address(self) -> str:
        """For `engine.address`."""
        return str(self._cluster.address)

    def add(self) -> None:
        """One more node joins."""
        self.workers.append(self._cluster.add_node(num_cpus=self._cores, object_store_memory=STORE_BYTES))

    def kill_one(self) -> None:
        """The oldest node but the first dies: all its processes get a SIGKILL, as if the machine had lost power."""
        self._cluster.remove_node(self.workers.pop(0), allow_graceful=False)

    def close(self) -> None:
        """End all nodes, and leave nothing behind."""
        self._cluster.shutdown()
        deadline_s = time.monotonic() + 10
        while time.monotonic() < deadline_s and os.path.exists(self._folder):  # noqa: PTH110 - daemons still write logs
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def local_cluster(nodes: int, cores: int = 1) -> Iterator[LocalCluster]:
    """A cluster while the context lasts."""
    cluster = LocalCluster(nodes, cores)
    try:
        yield cluster
    finally:
        cluster.close()
