"""One worker on some texts, outside of any run: for the doctor, for audit and for tune."""

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkvisor.child import run_child
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.model import RecoveryConfig
from chunkvisor.devices.gpu import Device
from chunkvisor.engine.process import oom_kills, worker_command, worker_environment
from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor.judge import ONE_ROW, EndedBy, Evidence, Pulse, Verdict, judge
from chunkvisor.store.attempt import gather, last_line, write_attempt
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.files import AttemptFiles
from chunkvisor_worker.contract.frozen import frozen
from chunkvisor_worker.contract.messages import EncodeSpec, Limits, ModelSpec, Spec
from chunkvisor_worker.contract.right import allowed_difference
from chunkvisor_worker.contract.wire import read_beat, to_json

_MOST_BYTES = 16 << 20


def difference_and_cosine(
    found: npt.NDArray[np.float32], right: npt.NDArray[np.float32]
) -> tuple[float, float]:
    """(length of the difference, relative to that of the right vector; cosine).

    Two zero vectors are equal.
    """
    one = found.astype(np.float64)
    other = right.astype(np.float64)
    lengths = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    if not any(lengths):
        return 0.0, 1.0
    difference = float(np.linalg.norm(one - other)) / max(lengths[1], 1e-30)
    return difference, float(one @ other) / max(lengths[0] * lengths[1], 1e-30)


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What such a file holds."""

    path: Path
    texts: tuple[str, ...]
    vectors: npt.NDArray[np.float32]  # shape (texts, dimension)

    def refusal(self, found: npt.NDArray[np.float32], dtype: str, model: ModelSpec) -> Halt | None:
        """Return a Halt (78) if the vectors that the model gives are not those.

        `found` has the shape of `vectors`, or another dimension; `dtype` is that of the weights
        that made it.
        """
        allowed = allowed_difference(dtype, model)
        if found.shape[1] != self.vectors.shape[1]:
            there = self.vectors.shape[1]
            here = found.shape[1]
            why = (
                f"the vectors in {self.path} have {there:,} dimensions, those of the model {here:,}"
            )
        else:
            compared = [
                difference_and_cosine(*pair) for pair in zip(found, self.vectors, strict=True)
            ]
            wrong = [at for at, (difference, _) in enumerate(compared) if not difference <= allowed]
            if not wrong:
                return None
            worst = min(wrong, key=lambda at: compared[at][1])
            difference, cosine = compared[worst]
            why = (
                f"{len(wrong)} of {len(self.texts)} vectors in {self.path} are others; the worst "
                f"is line {worst + 1}"
            )
            why += (
                f", {self.texts[worst]!r:.80}: cosine {cosine:.4f}, difference {difference:.2g} of "
                "its length"
            )
            why += f" ({allowed:g} is allowed with weights in {dtype or 'an unknown dtype'})"
        return config_error(
            f"the model {model.name} does not give the vectors that model.expect says",
            "Load it as its author does: compare model.trust_remote_code, model.kwargs, "
            "model.pooling, encode.prompt and encode.normalize with its page, and the versions of "
            "transformers and sentence-transformers. Or correct the file.",
            why=why,
        )


def read_expected(path: Path) -> Expected:
    """Read such a file. Raises Halt (78) that names the line that is wrong."""
    try:
        with open(path, "rb") as file:
            lines = file.read(_MOST_BYTES).splitlines() or [b""]
    except OSError as error:
        raise config_error(
            f"model.expect: {path} cannot be read: {error.strerror}",
            "Correct the path; `chunkvisor audit CONFIG --write-expect FILE` writes such a file.",
        ) from None
    texts = list[str]()
    vectors = list[npt.NDArray[np.float32]]()
    for number, line in enumerate(lines, 1):
        try:
            found = json.loads(line)
            with np.errstate(over="ignore"):
                text = found["text"]
                vector = np.array(found["vector"], dtype=np.float32)
            right = (
                isinstance(text, str)
                and vector.ndim == 1
                and np.isfinite(vector).all()
                and vector.any()
            )
            if not right or (vectors and vector.size != vectors[0].size):
                raise ValueError(line)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise config_error(
                f"model.expect: line {number} of {path} is not what is expected",
                'Correct it: each line is like {"text": "some words", "vector": [0.25, -0.5]}.',
                why="it must have a text and a vector of finite numbers, not all of them 0, as "
                "many as the lines above",
            ) from None
        texts.append(text)
        vectors.append(vector)
    return Expected(path, tuple(texts), np.array(vectors, dtype=np.float32))


def write_line(text: str, vector: npt.NDArray[np.float32]) -> bytes:
    """Write a line of such a file; each number has as many digits as float32 needs."""
    numbers = ", ".join(str(number) for number in vector.astype(np.float32))
    return f'{{"text": {json.dumps(text)}, "vector": [{numbers}]}}\n'.encode()


@frozen
class Trial:
    """How the worker ended."""

    verdict: Verdict
    vectors: npt.NDArray[np.float32] | None  # of shape (texts, dimension); None if it failed
    log_line: str  # the last of its log
    phase_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds that it spent in each phase."""
    dtype: str = ""  # of the weights as loaded
    notes: tuple[str, ...] = ()  # what the libraries warned of while they loaded the model

    def failure(self, what: str) -> Halt:
        """Return the end of whatever needed the vectors."""
        return Halt(
            ExitCode(self.verdict.exit_code or ExitCode.TRY_AGAIN),
            f"{what}: {self.verdict.outcome}",
            self.verdict.remedy or "Run `chunkvisor doctor` to check the machine and the model.",
            why=f"{self.verdict.reason}; the last line of the worker's log: "
            f"{self.log_line or 'nothing'}",
            see=self.verdict.see,
        )


def try_texts(
    texts: Sequence[str],
    model: ModelSpec,
    encode: EncodeSpec,
    device: Device,
    loaded: LoadedConfig | None,
    folder: Path,
    on_wait: Callable[[], None] = lambda: None,
    limits: Limits = ONE_ROW,
    workers: int = 1,
) -> Trial:
    """Run a worker in the existing empty folder, one of `workers` at a time.

    Without `limits`, each text is a batch.

    Raises OSError, and what `on_wait` raises.
    """
    files = AttemptFiles(folder)
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    recovery = loaded.config.recovery if loaded is not None else RecoveryConfig()
    env, path = (loaded.config.env, (str(loaded.folder),)) if loaded is not None else ({}, ())
    environment = worker_environment(os.environ, device, secrets.token_hex(8), env, threads=threads)
    draft = Spec(
        "trial",
        "trial",
        "trial",
        0,
        1,
        0,
        0,
        "",
        device.kind,
        model,
        encode,
        import_path=path,
        limits=limits,
    )
    spec = write_attempt(files, draft, texts)
    kills_before = oom_kills()
    ended_why = ""
    returncode = None
    began_s = time.monotonic()
    pulse = Pulse(began_s, began_s)

    def look() -> None:
        nonlocal pulse
        on_wait()
        now_s = time.monotonic()
        pulse = pulse.with_beat(read_beat(files.beat), now_s)
        if why := pulse.overdue(now_s, recovery):
            raise TimeoutError(why)

    ours, theirs = socket.socketpair()  # the worker ends when this process does
    with ours, theirs:
        ours.sendall(to_json(limits))
        command = worker_command(files)
        stdin = theirs.fileno()
        try:
            returncode = run_child(command, files.log, look, environment, stdin=stdin, stack=True)
        except TimeoutError as error:
            ended_why = str(error)
    ended_by = EndedBy.HANG if ended_why else EndedBy.ITSELF
    kills = oom_kills() - kills_before
    end = Evidence(returncode, ended_by, ended_why, oom_kills=kills, limits=limits)
    evidence = gather(files, spec, None, lambda index: not texts[index].strip(), end)
    verdict = judge(evidence)
    result = evidence.result
    vectors = (
        np.load(files.vectors, allow_pickle=False) if verdict.outcome is Outcome.COMMITTED else None
    )
    trial = Trial(verdict, vectors, last_line(evidence.log_tail)[:300])
    if result is None:
        return trial
    notes = result.facts.loaded.notes if result.facts.loaded is not None else ()
    return replace(trial, phase_s=result.phase_s, dtype=result.facts.dtype, notes=notes)
