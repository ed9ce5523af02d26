"""Waits for a disk that is full while something is prepared, for as long as `recovery.wait_timeout` says."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from chunkvisor.errors import KEPT, ExitCode, Halt
from chunkvisor.events.event import Emit
from chunkvisor.heart.waitteller import WaitTeller
from chunkvisor.store.disk import DISK_ERRNOS, with_room
from chunkvisor_worker.contract.exits import Outcome

_Done = TypeVar("_Done")
_FIRST_S, _LONGEST_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class DiskWait:
    """How a run waits for room on a disk."""

    timeout_s: float
    pause: Callable[[float], None]
    """Lets so many seconds pass; raises to stop."""
    emit: Emit

    def until_done(self, do: Callable[[], _Done], what: str, place: Path) -> _Done:
        """What `do` returns, once it meets no full disk. Raises Halt (74) past the limit, and what else `do` raises."""
        deadline_s, delay_s, teller = None, _FIRST_S, WaitTeller(self.emit, self.timeout_s)
        while True:
            try:
                return do()
            except Halt as halt:
                if halt.code is not ExitCode.DISK:
                    raise
                why = halt.what.rstrip(".") + (f": {halt.why}" if halt.why else "")
            except OSError as error:
                if error.errno not in DISK_ERRNOS:
                    raise
                why = str(error)
            now_s = time.monotonic()
            deadline_s = now_s + self.timeout_s if deadline_s is None else deadline_s
            left_s = deadline_s - now_s
            if left_s <= 0:
                raise _no_room(what, place, why)
            delay_s = min(delay_s, left_s)
            teller.tell(delay_s, self.timeout_s - left_s, why, Outcome.DISK_FULL)
            self.pause(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_S)


def _no_room(what: str, place: Path, why: str) -> Halt:
    return Halt(
        ExitCode.DISK,
        f"the disk of {place} is full or failing while {what}",
        why=with_room(why, place),
        remedy=f"free some space, or move the workdir; then run the same command again{KEPT}",
    )
