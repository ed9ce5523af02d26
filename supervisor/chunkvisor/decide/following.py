"""What a run does after a failed attempt, in a few words for the person who sees it fail. Pure."""

from chunkvisor.decide.steps import EndRun, Isolate, Retry, Split, StartAgain, Step, Wait
from chunkvisor.units import counted, human_time


def what_follows(step: Step) -> str:
    """Such as `retrying with batches of at most 8 rows`; empty where the next event says it better."""
    match step:
        case Retry(tier=tier) if tier is not None:
            return f"retrying with batches of at most {counted(tier.rows, 'row')}"
        case Retry(delay_s=delay_s, blocking_launches=True):
            return f"retrying{_soon(delay_s)}, with CUDA_LAUNCH_BLOCKING=1 so that the log names the place"
        case Retry(delay_s=delay_s):
            return f"retrying{_soon(delay_s)}"
        case StartAgain(delay_s=delay_s):
            return f"starting another worker{_soon(delay_s)}"
        case Isolate():
            return "trying the texts of that batch one by one"
        case Split(bad_rows=bad_rows) if bad_rows:
            bad = f"the {len(bad_rows):,} bad texts" if len(bad_rows) > 1 else "the bad text"
            return f"keeping the others, and trying {bad} alone"
        case Split():
            return "trying it in two halves"
        case Wait():
            return "waiting, then retrying"
        case EndRun():
            return "retrying would not help"
    return ""


def _soon(delay_s: float) -> str:
    return f" in {human_time(delay_s)}" if delay_s >= 1 else ""
