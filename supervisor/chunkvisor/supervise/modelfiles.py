"""The files of a run's model: resolved, downloaded or converted before the first worker, and what was learnt of it."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from chunkvisor.config.choices import Backend
from chunkvisor.config.specs import model_spec
from chunkvisor.decide.history import Budget
from chunkvisor.devices.gpu import Device
from chunkvisor.engine.environment import thread_count, worker_environment
from chunkvisor.engine.localmodel import folder_like
from chunkvisor.engine.modelsource import ModelSource, resolve_hub, resolve_local, source_at_hand
from chunkvisor.errors import Halt, config_error
from chunkvisor.events.model import CheckingModel, ConvertingModel, CosineLow, ModelQuantized, Resolving
from chunkvisor.events.run import Note
from chunkvisor.store.lessons import LessonFile
from chunkvisor.supervise.request import Request, Run
from chunkvisor.supervise.staging import request_of
from chunkvisor.supervise.waitteller import WaitTeller
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import ModelSpec

if TYPE_CHECKING:
    from chunkvisor.engine.quantization import Sample


class ModelFiles:
    """Of the one model that all outputs have."""

    def __init__(
        self,
        request: Request,
        run: Run,
        device: Device,
        budget: Budget,
        pause: Callable[[float], None],
        on_wait: Callable[[], None],
    ) -> None:
        """`device` is the first; `pause` takes seconds; what it and `on_wait` raise ends what is under way."""
        self._request = request
        self._config = request.loaded.config
        self._run = run
        self._device = device
        self._budget = budget
        self._pause = pause
        self._on_wait = on_wait

    def resolve(self, begin: Callable[[ModelSource], None] | None = None, *, anew: bool) -> ModelSource:
        """Where they are; with `anew` the hub is asked in any case.

        Of a folder `begin` is told before its files are read, so that the model loads meanwhile. Raises Halt; OSError.
        """
        model, layout = self._config.model, self._run.layout
        if model.is_plugin:
            return ModelSource(None, model.revision)
        try:
            if model.is_folder:
                self._run.emit(CheckingModel(model.name))
                return resolve_local(model, layout.model, self._on_wait, begin)
            with _naming(self._near):
                at_hand = source_at_hand(model, layout.model)  # refuses the path of a folder that is not there
        except OSError as error:
            raise config_error(f"the model folder {model.name} cannot be read: {error}") from None
        if at_hand is None:
            from chunkvisor.ingest.firstrow import try_first_row

            # The hub may be waited for, and a download takes minutes: what is wrong with the sources is said before.
            for name in self._config.outputs:
                try_first_row(request_of(self._config, name, self._request.max_rows), self._on_wait)
        near = self._near() if at_hand is None else None
        if near is not None:
            self._run.emit(Note(f"there is no model folder {model.name} here; did you mean {near}?"))
        self._run.emit(Resolving(model.name, str(near or "")))

        teller = WaitTeller(self._run.emit, self._budget.wait_timeout_s)

        def wait(seconds: float, waited_s: float, why: str) -> None:
            teller.tell(seconds, waited_s, why, Outcome.HUB)
            self._pause(seconds)

        with _naming(lambda: near):
            return resolve_hub(model, layout.model, layout.fetch, self._budget, wait, self._on_wait, anew=anew)

    def _near(self) -> Path | None:
        """The folder that may have been meant by the model's name."""
        return folder_like(self._config.model.name, self._request.loaded.folder)

    def convert(self, source: ModelSource, model: ModelSpec) -> None:
        """Have the model converted into its place. Raises Halt; OSError."""
        from chunkvisor.engine.conversion import ensure_converted  # with numpy, like the next: see `means`

        ensure_converted(model, self._environment, self._on_wait, self._tell_converting, _check_of(source))

    def quantize(self, source: ModelSource, samples: "Sequence[Sample]", wanted: str | None) -> str:
        """Have the model in int8, quantised on these texts; see `ensure_quantized`. Raises Halt; OSError."""
        from chunkvisor.engine.quantization import LEAST_COSINE, ensure_quantized, read_quantized

        model, made, folder = self._config.model, False, self._run.layout.converted

        def tell() -> None:
            nonlocal made
            made = True
            self._tell_converting()

        spec, check = model_spec(model, source.path, source.revision), _check_of(source)
        digest = ensure_quantized(spec, folder, samples, self._environment, self._on_wait, tell, check, wanted)
        if made and (told := read_quantized(folder, digest)) is not None:
            self._run.emit(ModelQuantized(**asdict(told)))
            if told.least_cosine < LEAST_COSINE:
                self._run.emit(CosineLow(told.least_cosine))
        return digest

    @property
    def _environment(self) -> dict[str, str]:
        """Of the child that converts."""
        run, extra = self._run, self._config.env
        threads = thread_count(extra.get("OMP_NUM_THREADS"), self._device.kind, len(os.sched_getaffinity(0)))
        return worker_environment(os.environ, self._device, run.run_id, os.getpid(), extra, threads=threads)

    def _tell_converting(self) -> None:
        model = self._config.model
        self._run.emit(ConvertingModel(model.name, model.backend, str(model.dtype)))

    def lessons(self, source: ModelSource) -> LessonFile:
        """What was learnt of its memory."""
        model = self._config.model
        other = f"|{model.backend}" if model.backend is not Backend.TORCH else ""
        of_model = f"{source.revision or model.name}|{model.dtype}|{model.encoder}{other}"
        return LessonFile(self._run.layout.lessons, of_model)


@contextlib.contextmanager
def _naming(find: Callable[[], Path | None]) -> Iterator[None]:
    """Where there is no model by its name, the folder that may have been meant is named, if one is found."""
    try:
        yield
    except Halt as halt:
        if (near := find()) is not None:
            halt.remedy = f"If you meant the folder {near}, write it as model.name. {halt.remedy}"
        raise


def _check_of(source: ModelSource) -> Callable[[], None]:
    return source.local.check if source.local is not None else lambda: None
