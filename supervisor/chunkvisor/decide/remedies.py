"""What a person can do once a run has ended, by what its last worker met. Pure words."""

from chunkvisor.decide.verdict import Verdict
from chunkvisor.units import human_bytes
from chunkvisor_worker.contract.exits import Outcome


def last_remedy(verdict: Verdict) -> str:
    """What a person can do when the tries are used up.

    A rule's own remedy stands where the rule is about the machine, the config or the world. The others say what
    chunkvisor does next, and there is no next.
    """
    if verdict.exit_code is not None and verdict.remedy:
        return verdict.remedy
    figures = verdict.figures
    if figures is not None and figures.others_named and figures.others_bytes > figures.ours_bytes:
        return (
            f"Other processes hold {human_bytes(figures.others_bytes)} of the GPU's {human_bytes(figures.total_bytes)}:"
            " `nvidia-smi` shows which. End them, wait for them, or choose another GPU with `device:`."
        )
    return _LAST_REMEDIES_OF_RULES.get(verdict.rule) or _LAST_REMEDIES.get(verdict.outcome, "Read the log.")


def advice_on_row(outcome: str, reason: str) -> str:
    """What a person can look at first where a row has no vector, by what became of the attempts at it."""
    if "SIGKILL" in reason:
        return "To see whether the kernel killed it for want of memory: dmesg -T | grep -i 'out of memory'."
    return _LAST_REMEDIES.get(Outcome(outcome), "") if outcome in list(Outcome) else ""


MEANING = {
    Outcome.COMMITTED: "it is done",
    Outcome.GPU_OOM: "the GPU ran out of memory",
    Outcome.DEVICE_FAULT: "the GPU failed in every new process",
    Outcome.HARDWARE_FAULT: "the GPU itself is faulty or gone",
    Outcome.GPU_BUSY: "another process holds the GPU",
    Outcome.SETUP: "every worker would fail alike",
    Outcome.HOST_OOM: "the machine ran out of memory, threads or open files",
    Outcome.CRASHED: "the worker died",
    Outcome.HUNG: "the worker made no progress",
    Outcome.BAD_INPUT: "a text cannot be encoded",
    Outcome.BAD_OUTPUT: "the vectors cannot be used",
    Outcome.DISK_FULL: "the disk is full or failing",
    Outcome.HUB: "the model hub cannot be reached",
    Outcome.INTERRUPTED: "somebody else ended the worker",
    Outcome.LOST: "the worker's machine was lost",
}
"""What an outcome means, in a few words."""

_LAST_REMEDIES_OF_RULES = {
    "nvml-assert-allocator": "Run `nvidia-smi`. If it fails, reload the NVIDIA driver or reboot. If it works, see who "
    "holds the GPU's memory; else use a GPU with more of it, a smaller model.max_length, or model.dtype bfloat16.",
}
"""Where more can be said than by the outcome."""


_LAST_REMEDIES = {
    Outcome.GPU_OOM: "Use a GPU with more memory, a smaller model.max_length, or model.dtype bfloat16.",
    Outcome.HOST_OOM: "Give the machine or its container more memory, or set workers.standby to 0.",
    Outcome.DEVICE_FAULT: "Read the log; `chunkvisor doctor CONFIG` checks driver, torch and GPU.",
    Outcome.CRASHED: "Read the log: its last lines say where.",
    Outcome.HUNG: "Read the log: it has the stack. If it was only slow, raise recovery.stall_timeout; to find out, run "
    "it with --max-rows 100 --set recovery.stall_timeout=30m.",
    Outcome.BAD_INPUT: "Correct the row in the source.",
    Outcome.BAD_OUTPUT: "Check the model with `chunkvisor doctor CONFIG`; model.dtype float32 often helps against NaN.",
    Outcome.INTERRUPTED: "Find out who ends the workers: a batch system, a container limit, another person.",
    Outcome.LOST: "Find out why the machines that worked on it were lost: look at their memory and their Ray logs.",
    Outcome.DISK_FULL: "Free some space on the disk of the workdir.",
    Outcome.GPU_BUSY: "End the other process on the GPU, or wait for it.",
    Outcome.HUB: "Check the network, or name a local model folder.",
}
