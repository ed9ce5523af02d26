"""Findings about the Ray cluster of the config.

Pure: it never asks the cluster.
"""

from collections.abc import Iterator

from chunkvisor.commands.doctor.finding import Blame, Finding, State
from chunkvisor.commands.doctor.readings import Readings, Wanted


def check_cluster(readings: Readings) -> Iterator[Finding]:
    """Whether it answers, and has devices for the job."""
    cluster = readings.cluster
    if cluster is None:
        return
    if cluster.problem:
        mend = (
            "start it: ray start --head; or correct engine.address; pip install 'chunkvisor[ray]' where Ray is missing"
        )
        yield Finding("cluster", State.FAULT, f"no Ray cluster answers: {cluster.problem}", mend, Blame.MACHINE)
        return
    what = f"{cluster.nodes} nodes with {cluster.processors} processors and {cluster.gpus} GPUs"
    if readings.wanted is not Wanted.CPU and not cluster.gpus:
        mend = "start a node on a machine with a GPU: ray start --address; or write device: cpu"
        yield Finding("cluster", State.WARNING, f"{what}; a run would wait for a GPU", mend)
        return
    yield Finding("cluster", State.OK, f"{what}; the other findings are about this machine")
