"""A worker's first steps after it was forked from a template: becomes what a fresh worker is, then does its attempt."""

import faulthandler
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Fork, Spec
from chunkvisor_worker.contract.wire import read_message
from chunkvisor_worker.encoder import Encoder
from chunkvisor_worker.job import run_and_exit
from chunkvisor_worker.liveness import leave
from chunkvisor_worker.taint import find_gpu_use


def be_worker(fork: Fork, stdin: int, log: int, not_ours: Iterable[int], encoder: Encoder) -> NoReturn:
    """Do the attempt with the encoder that is loaded already; ends the process, whatever happens.

    There is no PR_SET_PDEATHSIG here: it would be bound to the template, whose end is no reason to lose work. When the
    parent is gone, the lifeline ends this process; if that fails (a library that never lets go of the GIL), the
    template does.

    `not_ours` are the template's own descriptors. Others stay open: an import may have opened them, and a Python object
    whose descriptor was closed would close another one later.
    """
    try:
        os.setsid()
        for number, fd in enumerate((stdin, log, log)):
            os.dup2(fd, number)
        for fd in not_ours:
            os.close(fd)
        faulthandler.enable()
        for name in fork.removed:
            os.environ.pop(name, None)
        os.environ.update(fork.environment)
        sys.argv[1:] = [fork.folder]
        if use := find_gpu_use():
            leave(WorkerExit.TAINTED_TEMPLATE, f"refuses to run from a tainted template: {use}")
        _begin_anew(AttemptFiles(Path(fork.folder)))

        def adopted(spec: Spec) -> Encoder:
            encoder.adopt(spec.encode)
            return encoder

        run_and_exit(Path(fork.folder), adopted)
    except BaseException:  # noqa: BLE001 - nothing may get back into the template's loop
        traceback.print_exc()
    leave(WorkerExit.UNKNOWN)


def _begin_anew(files: AttemptFiles) -> None:
    """Undo what the template had to do otherwise than a fresh worker."""
    spec = read_message(Spec, files.spec)
    if spec is not None:
        _use_threads(spec.threads)
        module = sys.modules.get("transformers.utils.import_utils") if spec.device != "cpu" else None
        for value in list(vars(module).values()) if module else ():
            # Have transformers look again (lru_cache): there was no GPU in the template.
            clear: Any = getattr(value, "cache_clear", None)
            if callable(clear):
                clear()
    # Python re-seeds `random` itself, after a fork; torch begins with the same seed in every process.
    if generators := sys.modules.get("numpy.random"):
        generators.seed()


@functools.cache
def find_pools() -> Any:
    """Return a ThreadpoolController of threadpoolctl over the OpenMP and BLAS libraries loaded so far, or None.

    The template asks first, so that its workers need not look for the libraries again.
    """
    try:
        return importlib.import_module("threadpoolctl").ThreadpoolController()
    except ImportError:  # a numpy loaded by the template then multiplies with one thread
        return None


def _use_threads(count: int) -> None:
    """Let torch, OpenMP and BLAS use as many threads as a fresh worker's would; 0 leaves them as they are.

    What the user's own code has chosen stays, as far as that is known: one thread is what the template had.
    Libraries that are loaded later read it from OMP_NUM_THREADS.
    """
    if not count:
        return
    torch = sys.modules.get("torch")
    # Asked first: the answer is OpenMP's, which the next line changes, while torch's own MKL is reached by torch alone.
    untouched = torch is not None and torch.get_num_threads() == 1
    if (pools := find_pools()) is not None:
        pools.limit(limits=count)
    if torch is not None and untouched:
        torch.set_num_threads(count)
