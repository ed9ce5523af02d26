"""`python -m chunkvisor_worker ATTEMPT_DIR` makes the attempt in that folder.

The command can be typed as well.
"""

import faulthandler
import sys
from pathlib import Path

from chunkvisor_worker.contract.secrets import mask_standard_streams
from chunkvisor_worker.liveness import die_with_parent


def main() -> None:
    """Parse the one argument, run, exit."""
    faulthandler.enable()
    mask_standard_streams()
    die_with_parent()
    from chunkvisor_worker.job import run_and_exit

    run_and_exit(Path(sys.argv[1]))


main()
