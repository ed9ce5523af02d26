"""`python -m chunkvisor_worker ATTEMPT_DIR`: does the attempt in that folder; anyone can run the line by hand."""

import faulthandler

from chunkvisor_worker.liveness import die_with_parent, only_argument


def main() -> None:
    """Parse the one argument, run, exit."""
    folder = only_argument("python -m chunkvisor_worker ATTEMPT_DIR")
    faulthandler.enable()
    die_with_parent()
    from chunkvisor_worker.job import run_and_exit

    run_and_exit(folder)


main()
