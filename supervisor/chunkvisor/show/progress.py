"""A snapshot as one line of text: the heartbeat of a run without a terminal, and the closing line of any run."""

from typing import TYPE_CHECKING

from chunkvisor.show.snapshot import Snapshot
from chunkvisor.units import counted, human_elapsed, human_time

if TYPE_CHECKING:
    from chunkvisor.show.outputstatus import OutputStatus

_FIRST_S, _LAST_S, _SHARE = 20.0, 600.0, 0.1


def heartbeat_s(elapsed_s: float) -> float:
    """Seconds until the next heartbeat: three a minute at first, one in ten minutes in the end."""
    return min(_LAST_S, max(_FIRST_S, _SHARE * elapsed_s))


def progress_line(snapshot: Snapshot) -> str:
    """How far the run is."""
    parts = [f"{stage(snapshot)}, {human_elapsed(snapshot.elapsed_s)} so far"]
    if snapshot.chunks:
        parts.append(
            f"{percent(snapshot.share)}, {rows_in_words(snapshot)}, "
            f"{snapshot.chunks_done:,} of {counted(snapshot.chunks, 'chunk')}"
        )
    parts += rates(snapshot)
    if snapshot.eta_s is not None:
        parts.append(time_left(snapshot))
    # The event of the wait has told the rest of the reason.
    waiting = f"; waiting: {snapshot.waits_for.partition('. ')[0]}" if snapshot.waits_for else ""
    return ", ".join(parts) + waiting


def stage(snapshot: Snapshot) -> str:
    """What it is at, and for how long, where that is less than all the time so far."""
    if snapshot.doing_s < 1 or snapshot.elapsed_s - snapshot.doing_s < 1:
        return snapshot.doing
    return f"{snapshot.doing} ({human_time(snapshot.doing_s)})"


def closing_line(snapshot: Snapshot) -> str | None:
    """What a run has done, and how far all is where work is left; None where there was nothing to do."""
    here, parts = snapshot.chunks_here, list[str]()
    if here:
        parts.append(f"{counted(here, 'chunk')} encoded in {human_elapsed(snapshot.elapsed_s)}, start-up included")
    if found := rates(snapshot):
        parts.append(f"{', '.join(found)} without it" if here else f"{', '.join(found)} (start-up not counted)")
    if snapshot.chunks and snapshot.share < 1:
        chunks = f"{snapshot.chunks_done:,} of {counted(snapshot.chunks, 'chunk')}"
        parts.append(f"done and kept: {rows_in_words(snapshot)} ({percent(snapshot.share)}), {chunks}")
    return "; ".join([*parts, snapshot.health.words]) if parts else None


def time_left(snapshot: Snapshot) -> str:
    """`about 71 s left`; where the rate of rows beside it would give another time, by what it is reckoned."""
    return f"about {human_time(snapshot.eta_s or 0.0)} left{' by tokens' * snapshot.by_tokens}"


def rows_in_words(what: "Snapshot | OutputStatus") -> str:
    """`about 2,997 of 3,010 rows`; without `about` where it is known to the row."""
    return f"{'about ' * what.estimated}{what.rows_done:,} of {counted(what.rows, 'row')}"


def rates(snapshot: Snapshot) -> list[str]:
    """Rows and tokens a second, where they are known; see `Snapshot.rows_per_s`."""
    found = []
    if snapshot.rows_per_s:
        found.append(f"{figure(snapshot.rows_per_s)} rows/s")
    if snapshot.tokens_per_s:
        found.append(f"{figure(snapshot.tokens_per_s)} tokens/s")
    return found


def figure(value: float) -> str:
    """A rate with two significant digits at least."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def percent(share: float) -> str:
    """`53 %`; 100 only where all is done."""
    return f"{min(int(100 * share), 100 if share >= 1 else 99)} %"
