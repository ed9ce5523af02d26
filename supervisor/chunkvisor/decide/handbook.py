"""What each outcome means, what a run does about it by itself, and what a person can do.

Pure words. The rules by which a fault is recognised have theirs in `chunkvisor_worker.contract.rules`.
"""

from dataclasses import dataclass

from chunkvisor_worker.contract.exits import Outcome


@dataclass(frozen=True, slots=True)
class Entry:
    """What a person wants to know of an end; each but the first a sentence or a few."""

    brief: str
    """What happened, in a few words."""
    what: str
    """What happened."""
    then: str
    """What the run does by itself."""
    do: str
    """What a person can do."""


QUARANTINE = "quarantine"
"""The entry about rows without a vector, which is no outcome of an attempt."""

ENTRIES: dict[str, Entry] = {
    Outcome.COMMITTED: Entry(
        "it is done",
        "The attempt's vectors are verified and part of the output.",
        "It continues with the next chunk.",
        "Nothing.",
    ),
    Outcome.GPU_OOM: Entry(
        "the GPU ran out of memory",
        "The GPU ran out of memory. The NVML assertion of CUDACachingAllocator.cpp is the same thing in disguise.",
        "A new process continues at the batch that did not fit, with half of it. The smaller size is kept for texts "
        "of that length and more, in this run and in later ones. Where another process came and took the memory, "
        "chunkvisor waits for it, up to recovery.wait_timeout, and makes no batch smaller.",
        "Nothing, as long as the run continues. If it ended the run: use a GPU with more memory, a smaller "
        "model.max_length, or, in another workdir, the model.dtype that `chunkvisor doctor CONFIG` names for the card.",
    ),
    Outcome.DEVICE_FAULT: Entry(
        "the GPU failed in every new process",
        "The CUDA context broke: every later call in that process fails as well.",
        "A new process tries the rest of the chunk, with CUDA_LAUNCH_BLOCKING=1, so that the log names the place. A "
        "text that does it again alone is quarantined. A GPU on which all fails while others succeed is left out.",
        "Read the log of the attempt. `chunkvisor doctor CONFIG` checks driver, torch and GPU. Look for Xid messages "
        "in the kernel's log (dmesg).",
    ),
    Outcome.HARDWARE_FAULT: Entry(
        "the GPU itself is faulty or gone",
        "The GPU itself is faulty or gone: it fell off the bus, needs a reset, or has memory errors.",
        "The GPU is left out, and the run continues on the others. Without another one it ends with 69.",
        "Reset the GPU (`nvidia-smi -r`), reboot, or replace it. Then run the same command again.",
    ),
    Outcome.GPU_BUSY: Entry(
        "another process holds the GPU",
        "Another process holds the GPU or its memory.",
        "The run waits up to recovery.wait_timeout, and continues as soon as there is room. Otherwise it ends with 75.",
        "See who it is with `nvidia-smi`. End that process, wait, or choose another GPU with `device:`.",
    ),
    Outcome.SETUP: Entry(
        "every worker would fail alike",
        "The driver, a package, the model or the config is wrong, so that every worker would fail alike.",
        "The run ends with 78 or 69, unless workers have succeeded before: then it tries again.",
        "Do what the last lines of the run say. `chunkvisor doctor CONFIG` repeats a worker's start without a run.",
    ),
    Outcome.HOST_OOM: Entry(
        "the machine ran out of memory, threads or open files",
        "The machine, or its memory limit, ran out of memory, threads or open files.",
        "The chunk is tried again with half the batch.",
        "Give the machine or the container more memory, set workers.standby to 0, or lower chunk.size.",
    ),
    Outcome.CRASHED: Entry(
        "the worker died",
        "The worker died, or raised an error that chunkvisor does not know.",
        "Finished batches are kept. The texts under way are tried again, then one by one; a text that fails alone "
        "twice is quarantined. A fault before the first batch is blamed on no text.",
        "Read the log: its last lines, and the attempt's fault.json next to it, say where. If it was killed (SIGKILL): "
        "`chunkvisor explain killed-from-outside`.",
    ),
    Outcome.HUNG: Entry(
        "the worker made no progress",
        "The worker made no progress for recovery.stall_timeout (before its first batch: recovery.startup_timeout).",
        "It is asked for its stack and killed. Finished batches are kept, and the texts under way are tried again; a "
        "text that hangs alone twice is quarantined.",
        "Read the log: it has the stack. If the worker was only slow, raise recovery.stall_timeout.",
    ),
    Outcome.BAD_INPUT: Entry(
        "a text cannot be encoded",
        "A text cannot be encoded by this model.",
        "The text is quarantined, and all others are encoded.",
        "Correct the row in the source, or do without its vector.",
    ),
    Outcome.BAD_OUTPUT: Entry(
        "the vectors cannot be used",
        "The encoder gave vectors that are not finite, all zero, or of the wrong shape or type; or it gave none.",
        "They are not used. The chunk is tried again; a text whose vector is bad again is quarantined.",
        "Correct your encoder. With a model, model.dtype float32 in another workdir often helps against NaN. "
        "`chunkvisor doctor CONFIG` tries the model on a few words.",
    ),
    Outcome.DISK_FULL: Entry(
        "the disk is full or failing",
        "The disk is full or failing.",
        "The run waits for space, up to recovery.wait_timeout. Then it ends with 74; finished work is kept.",
        "Free some space, or move the workdir. Then run the same command again.",
    ),
    Outcome.HUB: Entry(
        "the model hub cannot be reached",
        "The model hub cannot be reached, or asks to wait.",
        "The run waits up to recovery.wait_timeout, then ends with 75.",
        "Check the network and the token (HF_TOKEN), or name a local folder as model.name. Once a model is "
        "downloaded, later runs in the same workdir do not ask the hub.",
    ),
    Outcome.INTERRUPTED: Entry(
        "somebody else ended the worker",
        "The worker was asked to stop, and not by the run.",
        "Finished batches are kept. If the run itself was stopped, run it again to continue; otherwise the chunk "
        "is tried again.",
        "Run the same command again. If it was not you: look at the batch system and the container's limits.",
    ),
    Outcome.LOST: Entry(
        "the worker's machine was lost",
        "The machine that the worker ran on was lost, or the way to it.",
        "The chunk goes to another machine at once. This spends none of its tries.",
        "Look at the memory of that machine and at its Ray logs.",
    ),
    QUARANTINE: Entry(
        "rows have no vector",
        "Some texts fail every time, even alone. Their rows have no vector: NaN in a float file, zeros in int8 and "
        "ubinary, null in parquet.",
        "All other rows are complete, and the run ends with 3. With more than recovery.max_bad_rows of them, it ends "
        "with 78: that is rarely the texts' fault.",
        "Once the output is complete, its manifest (`<output>.json`) lists each row with its "
        "place in the source, the outcome and the reason. Until then `report.html` lists those found so far. To "
        "try them again, with other packages for instance: `chunkvisor retry WORKDIR`, then the same run. If you "
        "correct the source: `chunkvisor run CONFIG --update`.",
    ),
}
"""By outcome, and the quarantine; every outcome has one."""
