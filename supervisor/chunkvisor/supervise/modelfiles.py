"""The files of a run's model: resolved or downloaded before the first worker, and what was learnt of it."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from chunkvisor.engine.modelchecks import refuse_wrong_model
from chunkvisor.engine.modelsource import ModelSource, folder_like, resolve_hub, resolve_local, source_at_hand
from chunkvisor.errors import Halt, config_error
from chunkvisor.events.model import CheckingModel, Resolving
from chunkvisor.events.run import Note
from chunkvisor.heart.waitteller import WaitTeller
from chunkvisor.judge import Budget
from chunkvisor.store.records import LessonFile
from chunkvisor.supervise.begin import request_of
from chunkvisor.supervise.request import Request, Run
from chunkvisor_worker.contract.exits import Outcome


class ModelFiles:
    """Of the one model that all outputs have."""

    def __init__(
        self,
        request: Request,
        run: Run,
        budget: Budget,
        pause: Callable[[float], None],
        on_wait: Callable[[], None],
    ) -> None:
        """`pause` takes seconds; what it and `on_wait` raise ends what is under way."""
        self._request = request
        self._config = request.loaded.config
        self._run = run
        self._budget = budget
        self._pause = pause
        self._on_wait = on_wait

    def resolve(self, begin: Callable[[ModelSource], None] | None = None, *, anew: bool) -> ModelSource:
        """Where they are; with `anew` the hub is asked in any case.

        Of a folder `begin` is told before its files are read, so that the model loads meanwhile. Raises Halt, also if
        its files show that it is not the model that the config describes; OSError.
        """
        model, layout = self._config.model, self._run.layout
        if model.is_plugin:
            return ModelSource(None, model.revision)
        try:
            if model.is_folder:
                refuse_wrong_model(self._config, model.name)
                self._run.emit(CheckingModel(model.name))
                return resolve_local(model, layout.model, self._on_wait, begin)
            with _naming(self._near):
                at_hand = source_at_hand(model, layout.model)  # refuses the path of a folder that is not there
        except OSError as error:
            raise config_error(f"the model folder {model.name} cannot be read: {error}") from None
        if at_hand is None:
            from chunkvisor.sources.child import try_first_row

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
            found = resolve_hub(model, layout.model, layout.fetch, self._budget, wait, self._on_wait, anew=anew)
        refuse_wrong_model(self._config, found.path)
        return found

    def _near(self) -> Path | None:
        """The folder that may have been meant by the model's name."""
        return folder_like(self._config.model.name, self._request.loaded.folder)

    def lessons(self, source: ModelSource) -> LessonFile:
        """What was learnt of its memory."""
        model = self._config.model
        return LessonFile(self._run.layout.lessons, f"{source.revision or model.name}|{model.dtype}|{model.encoder}")


@contextlib.contextmanager
def _naming(find: Callable[[], Path | None]) -> Iterator[None]:
    """Where there is no model by its name, the folder that may have been meant is named, if one is found."""
    try:
        yield
    except Halt as halt:
        if (near := find()) is not None:
            halt.remedy = f"If you meant the folder {near}, write it as model.name. {halt.remedy}"
        raise
