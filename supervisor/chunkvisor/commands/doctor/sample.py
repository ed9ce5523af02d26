"""Has a worker encode a sample of texts, as a run would, and measures what comes back.

It never writes into the workdir, and leaves nothing behind: the attempt is made in a temporary folder.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from chunkvisor.commands.doctor.children import run_child
from chunkvisor.commands.doctor.readings import SampleReading
from chunkvisor.config.model import Config
from chunkvisor.config.specs import encode_spec
from chunkvisor.decide.outcome import EndedBy, judge
from chunkvisor.devices.hostmemory import oom_kills
from chunkvisor.engine.fresh import worker_command
from chunkvisor.store.attempt import Job, Place, gather, write_attempt
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.messages import EncodeSpec, Limits, ModelSpec

_TEXT = "The quick brown fox jumps over the lazy dog."
_OTHER = "Row after row, the vectors were written to the disk before dawn."
TEXTS = (_TEXT, _OTHER, _TEXT)
"""The first and the last are equal; with a batch for each, their vectors come from two passes of the same shape."""
_ONE_ROW = Limits(rows=1)


def distinct_encodes(config: Config) -> dict[EncodeSpec, list[str]]:
    """What shapes the vectors, and the outputs that ask for it: most configs have one for all."""
    found: dict[EncodeSpec, list[str]] = {}
    for name in config.outputs:
        encode = config.effective_encode(name)
        spec = encode_spec(encode)
        found.setdefault(spec, []).append(name)
    return found


def encode_sample(
    model: ModelSpec,
    encode: EncodeSpec,
    import_path: tuple[str, ...],
    device_kind: str,
    environment: Mapping[str, str],
    timeout_s: float,
    folder: Path,
) -> SampleReading:
    """Run one worker on TEXTS in the empty `folder`, in an environment without the parent's pid. Raises OSError."""
    files = AttemptFiles(folder)
    job = Job("doctor", "doctor", "sample", model, encode, import_path)
    spec = write_attempt(files, job, Place(0, 1, 0, device_kind), list(TEXTS), _ONE_ROW)
    killed_before = oom_kills()
    returncode = run_child(worker_command(files, spec), environment, files.log, timeout_s)
    evidence = gather(
        files,
        spec,
        None,
        lambda _text: False,
        returncode=returncode,
        ended_by=EndedBy.HANG if returncode is None else EndedBy.ITSELF,
        ended_why=f"not done after {timeout_s:.0f} s (recovery.startup_timeout)",
        oom_kills=oom_kills() - killed_before,
        limits=_ONE_ROW,
    )
    verdict = judge(evidence)
    if verdict.outcome is not Outcome.COMMITTED:
        last = next((line.strip() for line in reversed(evidence.log_tail.splitlines()) if line.strip()), "")
        return SampleReading(verdict, log_line=last[:300])
    return measure(SampleReading(verdict), np.load(files.vectors, allow_pickle=False))


def measure(reading: SampleReading, vectors: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> SampleReading:
    """The reading with what the vectors of TEXTS, shape (3, dimension), tell."""
    first, other, again = vectors
    scale = float(np.abs(first).max())
    return replace(
        reading,
        dimension=vectors.shape[1],
        difference=float(np.abs(first - again).max()) / scale,
        tells_apart=bool((first != other).any()),
    )
