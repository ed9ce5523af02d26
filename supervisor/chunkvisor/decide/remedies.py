"""What a person can do once a run has ended, by what its last worker met. Pure words."""

from chunkvisor.decide.verdict import Verdict
from chunkvisor.units import human_bytes
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rules import RULES


def last_remedy(verdict: Verdict) -> str:
    """What a person can do when the tries are used up.

    A rule's own remedy stands where the rule is about the machine, the config or the world. The others say what
    chunkvisor does next, and there is no next.
    """
    if verdict.gpu_error_on_cpu:
        at = f": {verdict.raised_at}" if verdict.raised_at else ""
        return (
            "The run is on the CPU (`device: cpu`), so no GPU and no driver is at fault; leave them alone. The encoder "
            f"raised an error that belongs to a GPU. Look at its code{at}."
        )
    of_rule = _OF_RULES.get(verdict.rule, "")
    if verdict.exit_code is not None and verdict.remedy and not of_rule:
        return verdict.remedy
    figures = verdict.figures
    if figures is not None and verdict.others_hold_memory:
        return (
            f"Other processes hold {human_bytes(figures.others_bytes)} of the GPU's {human_bytes(figures.total_bytes)}:"
            " `nvidia-smi` shows which. End them, wait for them, or choose another GPU with `device:`."
        )
    return of_rule or _LAST_REMEDIES.get(verdict.outcome, "Read the log.")


def advice_on_row(outcome: str, rule: str) -> str:
    """What a person can look at first where a row has no vector, by how the attempts at it failed; `rule` may be ""."""
    by_outcome = _LAST_REMEDIES.get(Outcome(outcome), "") if outcome in list(Outcome) else ""
    return _OF_RULES.get(rule, by_outcome)


_OF_RULES = {rule.name: rule.if_ended for rule in RULES if rule.if_ended}

_LAST_REMEDIES = {
    Outcome.GPU_OOM: "Use a GPU with more memory, or a smaller model.max_length.",
    Outcome.HOST_OOM: "Give the machine or its container more memory, or set workers.standby to 0.",
    Outcome.DEVICE_FAULT: "Read the log; `chunkvisor doctor CONFIG` checks driver, torch and GPU.",
    Outcome.CRASHED: "Read the log: its last lines say where.",
    Outcome.HUNG: "Read the log: it has the stack. If it was only slow, raise recovery.stall_timeout; to find out, run "
    "it with --max-rows 5 --set recovery.stall_timeout=30m.",
    Outcome.BAD_INPUT: "Correct the row in the source.",
    Outcome.BAD_OUTPUT: "Correct your encoder, or check the model with `chunkvisor doctor CONFIG`: "
    "model.dtype float32, in another workdir, often helps against NaN.",
    Outcome.INTERRUPTED: "Find out who ends the workers: a batch system, a container limit, another person.",
    Outcome.LOST: "Find out why the machines that worked on it were lost: look at their memory and their Ray logs.",
    Outcome.DISK_FULL: "Free some space on the disk of the workdir.",
    Outcome.GPU_BUSY: "End the other process on the GPU, or wait for it.",
    Outcome.HUB: "Check the network, or name a local model folder.",
}
