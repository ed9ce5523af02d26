"""The words of a run that is asked to stop before its work is done. Pure."""

from chunkvisor.errors import KEPT, ExitCode, Halt
from chunkvisor.heart.signals import Signals
from chunkvisor.units import human_time


def stopped(signals: Signals) -> Halt:
    """The end of a run that was asked to stop, by a signal or because its time is over."""
    remedy = f"run the same command again to go on from here{KEPT}"
    if signals.first is None:
        assert signals.stop_after_s is not None
        after = human_time(signals.stop_after_s)
        return Halt(ExitCode.TRY_AGAIN, f"stopped after {after}, as --stop-after asks", remedy=remedy)
    code = ExitCode.INTERRUPTED if signals.first.name == "SIGINT" else ExitCode.TERMINATED
    return Halt(code, f"stopped by {signals.first.name}", remedy=remedy)
