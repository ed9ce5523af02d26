"""How a child that is no worker ended: from its fault, and from the end of its log."""

from pathlib import Path

from chunkvisor.decide.outcome import Evidence, judge
from chunkvisor.decide.verdict import Verdict
from chunkvisor.store.attemptlogs import read_tail
from chunkvisor_worker.contract.messages import Fault
from chunkvisor_worker.contract.wire import read_message


def verdict_of_child(returncode: int, fault: Path, log: Path) -> Verdict:
    """Why there is no result, even where it ended with 0."""
    return judge(Evidence(returncode or 1, fault=read_message(Fault, fault), log_tail=read_tail(log)))
