"""`python -m chunkvisor_worker ATTEMPT_DIR`: does the attempt in that folder; anyone can run the line by hand."""

import faulthandler
import os
import sys
from pathlib import Path

from chunkvisor_worker.contract.environment import PARENT_PID
from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.liveness import die_with_parent


def main() -> None:
    """Parse the one argument, run, exit."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m chunkvisor_worker ATTEMPT_DIR\n")
        os._exit(WorkerExit.USAGE)
    faulthandler.enable()
    if parent_pid := os.environ.get(PARENT_PID):
        die_with_parent(int(parent_pid))
    from chunkvisor_worker.job import run_and_exit

    run_and_exit(Path(sys.argv[1]))


main()
