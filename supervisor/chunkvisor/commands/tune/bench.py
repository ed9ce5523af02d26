"""Runs one candidate on texts: in a worker of its own, or in several that share them."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

import numpy as np

from chunkvisor.commands.tune.candidates import Candidate
from chunkvisor.commands.tune.compare import Measured
from chunkvisor.config.load import LoadedConfig
from chunkvisor.config.sections import EncodeConfig
from chunkvisor.config.specs import encode_spec, resolve_limits
from chunkvisor.decide.likeness import Vectors, likeness
from chunkvisor.decide.watch import Patience
from chunkvisor.devices.gpu import Device
from chunkvisor.engine.trial import Conditions, Trial, environment_of, try_texts
from chunkvisor_worker.contract.messages import ModelSpec, Phase


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it."""

    trial: Trial
    """Of the worker; of several, of one that failed, or of the first."""
    vectors: Vectors | None
    """Of shape (texts, dimension), in the order of the texts; None where it failed."""
    texts_per_s: float
    """While it computes; 0 where it failed."""


class Bench:
    """Workers under the same conditions."""

    def __init__(
        self, loaded: LoadedConfig, model: ModelSpec, device: Device, scratch: Path, say: Callable[[str], None]
    ) -> None:
        self._loaded, self._model, self._device, self._scratch, self._say = loaded, model, device, scratch, say
        self._folders = 0
        self._reference: Vectors | None = None
        self._tried = set[Candidate]()
        self._stopped = Event()
        self.texts: list[str] = []
        self.known: dict[Candidate, Run] = {}
        """What has been run already on these texts."""

    def round(self, candidates: Iterable[Candidate]) -> Iterable[Measured]:
        """Try each on the sample, but for those of earlier rounds.

        The first that ever succeeds is what the others are compared with.
        """
        for candidate in candidates:
            if candidate in self._tried:
                continue
            self._tried.add(candidate)
            run = self.known.get(candidate) or self.run(candidate, self.texts)
            if run.vectors is None:
                verdict = run.trial.verdict
                yield Measured(candidate, problem=f"{verdict.outcome}: {verdict.reason}")
                continue
            if self._reference is None:
                self._reference = run.vectors
            yield Measured(candidate, run.texts_per_s, likeness(run.vectors, self._reference))

    def run(self, candidate: Candidate, texts: Sequence[str]) -> Run:
        """One worker, or several at the same time that share texts and cores."""
        self._say(f"trying {candidate}")
        model = replace(self._model, dtype=candidate.dtype)
        workers = candidate.per_device
        shares = [list(texts[number::workers]) for number in range(workers)]
        with ThreadPoolExecutor(workers) as pool:
            try:
                trials = list(pool.map(lambda share: self._try(candidate, model, share), shares))
            except BaseException:  # a signal above all, which only this thread gets
                self._stopped.set()
                raise
        found = [trial.vectors for trial in trials if trial.vectors is not None]
        if len(found) < workers:
            return Run(next(trial for trial in trials if trial.vectors is None), None, 0.0)
        vectors = np.empty((len(texts), found[0].shape[1]), dtype=np.float32)
        for number, share in enumerate(found):
            vectors[number::workers] = share
        seconds = max(_computing_s(trial, self._device) for trial in trials)
        return Run(trials[0], vectors, len(texts) / max(seconds, 1e-6))

    def _try(self, candidate: Candidate, model: ModelSpec, texts: Sequence[str]) -> Trial:
        config = self._loaded.config
        self._folders += 1
        folder = self._scratch / f".try{self._folders}"  # no output has such a name
        folder.mkdir(mode=0o700)
        environment = environment_of(os.environ, [self._device], config.env, workers=candidate.per_device)
        place = (str(self._loaded.folder),)
        patience = Patience.of(config)
        conditions = Conditions(self._device.kind, environment, place, patience)
        encode = first_encode(self._loaded).model_copy(update={"batch_tokens": candidate.batch_tokens})
        limits = resolve_limits(encode, self._device.kind, plugin=False)
        return try_texts(texts, model, encode_spec(encode), conditions, folder, self._unless_stopped, limits=limits)

    def _unless_stopped(self) -> None:
        if self._stopped.is_set():
            raise CancelledError


def first_encode(loaded: LoadedConfig) -> EncodeConfig:
    """How the config's first output is encoded: all candidates are."""
    return loaded.config.effective_encode(next(iter(loaded.config.outputs)))


def _computing_s(trial: Trial, device: Device) -> float:
    """On a CPU texts are tokenised by the cores that compute; on a GPU that is done ahead, beside another worker."""
    phases = (Phase.TOKENIZE, Phase.FORWARD) if device.kind == "cpu" else (Phase.FORWARD,)
    return sum(trial.phase_s.get(phase, 0.0) for phase in phases)
