"""The disk is full or failing, in the spelling of each library that writes.

It never says which disk: the message or the supervisor's own check does.
"""

import errno
import re

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import DISK, Evidence, Rule, Sign, error, runtime_error

_NO_SPACE = r"No space left on device|Disk quota exceeded|os error (?:28|122)\b"

DISK_RULES: tuple[Rule, ...] = (
    Rule(
        name="disk-full",
        outcome=Outcome.DISK_FULL,
        cause="The disk is full, or the user's quota is.",
        remedy="Free space on the disk of the workdir (and of TMPDIR); the run goes on when there is some.",
        signs=(
            # numpy's tofile and np.save(path) raise OSError without an errno.
            Sign(
                classes=("builtins.OSError",),
                errnos=(errno.ENOSPC, errno.EDQUOT),
                pattern=re.compile(rf"{_NO_SPACE}|Not enough free space to write|\d requested and \d{{1,20}} written"),
            ),
            error(r"database or disk is full", "sqlite3.OperationalError"),
            # torch.save: the position in the zip file is not what was written.
            runtime_error(r"enforce fail at inline_container\.cc.{0,80}unexpected pos"),
            # hf_xet, which downloads for the hub, raises RuntimeError.
            runtime_error(_NO_SPACE),
            error(_NO_SPACE, "safetensors._safetensors_rust.SafetensorError", "safetensors_rust.SafetensorError"),
        ),
        log=re.compile(r"No space left on device|Disk quota exceeded"),
        # Python's own: the work was done, but flushing stdout failed.
        returncodes=(120,),
        exit_code=DISK,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="disk-failing",
        outcome=Outcome.DISK_FULL,
        cause="The disk gives errors, was remounted read-only, or its server forgot the file (NFS).",
        remedy="See the kernel's log (`dmesg`) and the mount; move the workdir to a sound disk.",
        signs=(Sign(classes=("builtins.OSError",), errnos=(errno.EIO, errno.EROFS, errno.ESTALE)),),
        exit_code=DISK,
    ),
)
