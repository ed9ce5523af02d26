"""Ends of a worker that show in its return code or its log alone.

It never explains SIGKILL (-9): the kernel's OOM killer, our own kill and a person's look alike, so the supervisor asks
the counters of the cgroup and itself.
"""

import re
from signal import SIGABRT, SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGINT, SIGSEGV, SIGTERM

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import CONFIG, MACHINE, Evidence, Rule, of_class

INTERRUPTION_RULES: tuple[Rule, ...] = (
    Rule(
        name="interrupted",
        outcome=Outcome.INTERRUPTED,
        cause="Somebody asked the worker to stop.",
        remedy="Run the same command again to go on.",
        signs=(of_class("builtins.KeyboardInterrupt"),),
        returncodes=(-SIGINT, -SIGTERM, -SIGHUP),
        evidence=Evidence.RUN,
    ),
)
"""Apart, since they go first: what fails while a worker is being stopped is no fault."""

PROCESS_RULES: tuple[Rule, ...] = (
    Rule(
        name="worker-not-started",
        outcome=Outcome.SETUP,
        cause="The worker's interpreter or package is missing or broken, so that it never came to its first line.",
        remedy="Install chunkvisor[worker] where the workers run; the log names what is missing.",
        # The last line of the log only: a traceback further up was survived.
        log=re.compile(
            r"No module named '?chunkvisor_worker|^(?:ModuleNotFoundError|ImportError|SyntaxError): [^\n]*\s*\Z",
            re.MULTILINE,
        ),
        returncodes=(126, 127),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="illegal-instruction",
        outcome=Outcome.SETUP,
        cause="The processor does not know an instruction of an installed package: the CPU is older than the build.",
        remedy="Install builds for this CPU, or use another machine.",
        log=re.compile(r"Fatal Python error: Illegal instruction"),
        returncodes=(-SIGILL,),
        exit_code=MACHINE,
        evidence=Evidence.REPORTED,
    ),
    Rule(
        # A page of a memory-mapped file that has no disk behind it: np.memmap on a full disk, truncated weights.
        name="bus-error",
        outcome=Outcome.CRASHED,
        cause="The process touched a part of a mapped file that is not there: the disk is full, /dev/shm is too small, "
        "or the weights were cut short while open.",
        remedy="Check free space and the model's files; the chunk is tried again.",
        log=re.compile(r"Fatal Python error: Bus error"),
        returncodes=(-SIGBUS,),
        fresh_process_helps=True,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="segmentation-fault",
        outcome=Outcome.CRASHED,
        cause="Native code crashed: a bug or a clash of packages; the log has the Python stack.",
        remedy="The chunk is tried again, then with a smaller batch, then bisected; if it returns, update torch and "
        "the packages on the stack.",
        log=re.compile(r"Fatal Python error: (?:Segmentation fault|Floating.point exception)"),
        returncodes=(-SIGSEGV, -SIGFPE),
        smaller_batch_helps=True,
        fresh_process_helps=True,
        row_can_cause=True,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="aborted",
        outcome=Outcome.CRASHED,
        cause="Native code gave up; the log says why, above the Python stack.",
        remedy="The chunk is tried again, then bisected.",
        log=re.compile(r"Fatal Python error: Aborted|terminate called (?:after throwing|without an active exception)"),
        returncodes=(-SIGABRT,),
        fresh_process_helps=True,
        row_can_cause=True,
        evidence=Evidence.RUN,
    ),
)
