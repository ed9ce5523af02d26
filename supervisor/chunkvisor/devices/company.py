"""Who else was on the GPU when its memory ran out, and what that means for the words of the verdict.

Pure: torch's message and the gate's last look are handed in.
"""

from dataclasses import replace

from chunkvisor.decide.history import Company
from chunkvisor.decide.verdict import Verdict
from chunkvisor.devices.health import View
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.oommessage import OomFigures

_NOBODYS_BYTES = 768 << 20
"""More or less than this comes and goes by itself: the driver's own, windows of a desktop."""


def company_of(figures: OomFigures | None, view: View | None, siblings: frozenset[int]) -> Company:
    """Who it was; `siblings` are the pids of other workers of this run that were on the device.

    torch's figures go before the gate's look, which is older than the fault. Others who were there when the run began
    are part of the device: what they leave is what there is.
    """
    if view is None:
        return Company.UNTOLD
    if siblings:
        return Company.OURS
    if figures is not None:
        came_bytes = figures.others_bytes - view.before_bytes
        missing_bytes = figures.wanted_bytes - figures.free_bytes
        return Company.CAME if came_bytes > _NOBODYS_BYTES and came_bytes >= missing_bytes else Company.UNTOLD
    if view.blind:
        return Company.BLIND
    return Company.ALONE if view.alone else Company.UNTOLD


def in_company(verdict: Verdict, company: Company, siblings: frozenset[int]) -> Verdict:
    """The verdict with words that do not blame others for what another worker of this run held."""
    if company is not Company.OURS or verdict.outcome is not Outcome.GPU_BUSY or not verdict.weights_did_not_fit:
        return verdict
    pids = ", ".join(map(str, sorted(siblings)))
    return replace(
        verdict,
        reason=f"the GPU had no room for the weights beside another worker of this run (pid {pids})",
        remedy="Lower workers.per_device: the GPU has no room for so many copies of the model.",
    )
