"""Ends of a worker that show in its return code or its log alone, and faults that no other rule knows.

SIGKILL looks the same from the kernel's OOM killer, from us and from a person: before it comes to the rules, the
supervisor asks the counters of the cgroup and itself.
"""

from signal import SIGABRT, SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGINT, SIGKILL, SIGSEGV, SIGTERM

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import (
    LOAD,
    MACHINE,
    NEW_PROCESS,
    ON_TEXTS,
    ROW,
    SMALLER_BATCH,
    Evidence,
    Rule,
    Sign,
    crashed,
    misconfigured,
    of_class,
)

INTERRUPTION_RULES: tuple[Rule, ...] = (
    crashed(
        "interrupted",
        "A signal asked the worker to stop, or the program sent itself one.",
        "Run the same command again to go on.",
        of_class("builtins.KeyboardInterrupt"),
        outcome=Outcome.INTERRUPTED,
        returncodes=(-SIGINT, -SIGTERM, -SIGHUP),
        # Who comes back with the same texts, and with no others, is not the one who stops the job.
        hints=ROW,
    ),
)
"""Apart, since they go first: what fails while a worker is being stopped is no fault."""

PROCESS_RULES: tuple[Rule, ...] = (
    crashed(
        "killed-from-outside",
        "The kernel (for want of memory), a batch system, a person or the program itself killed the worker.",
        "Nothing, as long as the run continues: the chunk is tried again, then in halves.",
        returncodes=(-SIGKILL,),
        # No text and no package kills from outside: before the first batch it is the machine's matter.
        exit_code=MACHINE,
        hints=SMALLER_BATCH | NEW_PROCESS | ROW,
        if_ended="What is killed writes no log. To see whether it was the kernel: dmesg -T | grep -i 'out of memory' "
        "(it may need root; no line means that it was not). Look at the limits of the container or the batch system as "
        "well. Where the same texts end it each time, or all do, it is most likely the encoder's own doing.",
    ),
    misconfigured(
        "worker-not-started",
        "The worker's interpreter or package is missing or broken, so that it never came to its first line.",
        "Install chunkvisor[worker] where the workers run; the log names what is missing. A variable such as "
        "PYTHONHOME, of the shell or under `env`, does this as well.",
        # The last line of the log only: a traceback further up was survived.
        log=r"No module named '?chunkvisor_worker|^(?:ModuleNotFoundError|ImportError|SyntaxError): [^\n]*\s*\Z"
        r"|Fatal Python error: (?:init_|config_|Failed to import)",
        returncodes=(126, 127),
    ),
    crashed(
        "illegal-instruction",
        "The processor does not know an instruction of an installed package: the CPU is older than the build.",
        "Install builds for this CPU, or use another machine.",
        log=r"Fatal Python error: Illegal instruction",
        returncodes=(-SIGILL,),
        # Native code meets it at one text alone where that text takes another way through it.
        hints=NEW_PROCESS | ROW,
        exit_code=MACHINE,
        evidence=Evidence.REPORTED,
    ),
    crashed(
        # A page of a memory-mapped file that has no disk behind it: np.memmap on a full disk, truncated weights.
        "bus-error",
        "The process touched a part of a mapped file that is not there: the disk is full, /dev/shm is too small, "
        "or the weights were cut short while open.",
        "Check free space and the model's files; the chunk is tried again.",
        log=r"Fatal Python error: Bus error",
        returncodes=(-SIGBUS,),
        hints=NEW_PROCESS | ROW,
    ),
    crashed(
        "segmentation-fault",
        "Native code crashed: a bug or a clash of packages; the log has the Python stack.",
        "Update torch and the packages on the stack if it returns. Meanwhile the chunk is tried again, then with a "
        "smaller batch, then in halves.",
        log=r"Fatal Python error: (?:Segmentation fault|Floating.point exception)",
        returncodes=(-SIGSEGV, -SIGFPE),
        hints=SMALLER_BATCH | NEW_PROCESS | ROW,
    ),
    crashed(
        "aborted",
        "Native code gave up; the log says why, above the Python stack.",
        "Read the lines above the stack, and update the package that wrote them. Meanwhile the chunk is tried again, "
        "then in halves.",
        log=r"Fatal Python error: Aborted|terminate called (?:after throwing|without an active exception)",
        returncodes=(-SIGABRT,),
        hints=NEW_PROCESS | ROW,
    ),
)

UNKNOWN_RULES: tuple[Rule, ...] = (
    misconfigured(
        "import-failed",
        "What the model or the plug-in imports is missing, broken, or has an error in its own code.",
        "Install the package that the message names into the workers' environment; code of your own, correct. The end "
        "of the log has the line.",
        of_class("builtins.ImportError", "builtins.SyntaxError"),
    ),
    misconfigured(
        "unknown-at-load",
        "The model or the encoder could not be loaded.",
        "Repair what the end of the log names: a file of the model, or the encoder. `chunkvisor doctor CONFIG` repeats "
        "it without a run.",
        Sign(),
        phases=LOAD,
    ),
    crashed(
        "unknown-on-texts",
        "The encoder failed while it handled texts, with an error that chunkvisor does not know.",
        "Read the traceback at the end of the log. If few texts fail, look at them; if many do, look at the encoder "
        "and the model. Meanwhile the chunk is tried again, then in halves.",
        Sign(),
        phases=ON_TEXTS,
        hints=NEW_PROCESS | ROW,
    ),
    crashed(
        "unknown",
        "The worker failed with an error that chunkvisor does not know.",
        "The chunk is tried again; read the traceback in the attempt's fault.json.",
        Sign(),
    ),
)
"""Last, since they take everything."""
