"""A sticky CUDA fault at hundreds of places of an attempt: the worker leaves with its own exit code, and a record.

Before, torch often aborted on the way out, where it freed pinned memory or an event of a context that was lost; the
abort takes the exit code's place, and at worst comes before the record (pytorch#84756).
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chunkvisor.store.attempt import write_attempt
from chunkvisor_worker.contract.exits import Outcome, WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import EncodeSpec, Fault, Limits, ModelSpec, Spec, TemplateSpec
from chunkvisor_worker.contract.taxonomy import diagnose
from chunkvisor_worker.contract.wire import read_message, write_message
from nullgpu import NullGpu, texts

CODES = (700, 710, 719)
_PROGRAM = """
import json, os, sys
from pathlib import Path
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import Fork
from chunkvisor_worker.forked import be_worker
from chunkvisor_worker.template import load
encoder, unfit = load(AttemptFiles(Path(sys.argv[1])))
print(unfit, flush=True)
for line in sys.stdin:
    folder, setting = json.loads(line)
    log = os.open(folder + "/worker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    child = os.fork()
    if child == 0:
        be_worker(Fork(folder, {"NULLGPU_SET": setting}), nothing, log, [nothing, log], encoder)
    os.close(log)
    os.close(nothing)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Workers:
    """Makes attempts in a folder, each by a worker forked from a template that has loaded the model."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path, draft: Spec) -> None:
        self._process = process
        self._folder = folder
        self._draft = draft

    def attempt(self, name: str, setting: str) -> tuple[int, AttemptFiles]:
        """(return code, files) of an attempt under a setting of the null GPU, in batches of two rows."""
        files = AttemptFiles(self._folder / name)
        files.folder.mkdir()
        write_attempt(files, self._draft, texts(6))
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(files.folder), setting]) + "\n")
        self._process.stdin.flush()
        return int(self._line()), files

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def forked_workers(gpu: NullGpu, folder: Path, model: Path) -> Iterator[Workers]:
    """Workers of one template."""
    (folder / "template").mkdir(parents=True)
    named = ModelSpec(name=str(model), path=str(model))
    write_message(AttemptFiles(folder / "template").spec, TemplateSpec(named, "cuda"))
    process = gpu.start([sys.executable, "-c", _PROGRAM, str(folder / "template")])
    assert process.stdout is not None
    unfit = process.stdout.readline()
    assert unfit == "\n", (unfit, process.communicate())
    try:
        draft = Spec(
            "run", "print", "out", 0, 1, 0, 0, "", "cuda", named, EncodeSpec(), threads=1, limits=Limits(rows=2)
        )
        yield Workers(process, folder, draft)
    finally:
        process.communicate()
    assert process.returncode == 0


_NAMED = ("cudaEventCreateWithFlags", "cudaEventRecordWithFlags", "cudaEventQuery", "cudaPointerGetAttributes")


def positions(calls: list[str]) -> list[str]:
    """300 faults, spread over the calls of an attempt that ended well, up to the wait for its last vectors."""
    last = max(index for index, call in enumerate(calls) if call == "cudaEventSynchronize")
    names = Counter(call.split()[0] for call in calls[: last + 1])
    launches = names["cudaLaunchKernel"] + names["cublasLtMatmul"]
    waits = sum(names[name] for name in ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"))
    once = {name: names[name] for name in ("cudaMalloc", "cudaHostAlloc", *_NAMED)}
    whole = [("launch", launches), ("memcpy", names["cudaMemcpyAsync"]), ("wait", waits), *once.items()]
    found = [f"{place}:{nth},sticky" for place, count in whole for nth in range(1, count + 1)]
    # Those of the last batch, noticed later, would be noticed by nobody.
    found += [f"launch:{nth},sticky,late={late}" for late in (1, 2) for nth in range(1, launches * 2 // 3)]
    step = len(found) / 300
    return [f"fault={CODES[i % 3]}@{found[int(i * step)]}" for i in range(300)]


def test_a_sticky_fault_never_costs_the_exit_code(gpu: NullGpu, bert: Path, tmp_path: Path) -> None:
    """Launches, copies, waits, allocations, events: 300 times the exit code is 21, and the record names the fault."""
    with forked_workers(gpu, tmp_path / "attempts", bert) as workers:
        code, files = workers.attempt("clean", "")
        assert code == WorkerExit.DONE, files.log.read_text()
        faults = positions(next(iter(gpu.trace().values())))
        gpu.set(trace=0)
        wrong = {}
        for number, setting in enumerate(faults):
            code, files = workers.attempt(str(number), setting)
            fault = read_message(Fault, files.fault)
            outcome = diagnose(fault).outcome if fault is not None else None
            if (code, outcome) != (WorkerExit.DEVICE_FAULT, Outcome.DEVICE_FAULT) or files.result.exists():
                wrong[setting] = (code, outcome, files.log.read_text()[-300:])
        assert len(set(faults)) == 300
        assert not wrong, f"{len(wrong)} of {len(faults)}: {wrong}"
