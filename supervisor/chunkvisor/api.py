"""The Python interface: `chunkvisor.encode` and `chunkvisor.run`.

Workers are processes, started as the command starts them: a script needs no `__main__` guard, and a notebook or a
thread will do.
"""

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from chunkvisor.calls import CallOfTexts, called_from_python, in_python
from chunkvisor.config.load import Given, LoadedConfig, from_values, in_sections, load
from chunkvisor.config.values import seconds_of
from chunkvisor.errors import KEPT, ChunkvisorError, ExitCode, config_error
from chunkvisor.events.event import Event
from chunkvisor.events.state import RunState
from chunkvisor.results import Report, loss_in_words
from chunkvisor.show.lines import Console, Logger, is_watched
from chunkvisor.show.observer import Observer, Observers
from chunkvisor.sources.given import place_of, writing
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.supervise.means import Request
from chunkvisor.supervise.session import run as run_session
from chunkvisor_worker.contract.files import make_folders

OnEvent: TypeAlias = Callable[[str, dict[str, Any]], None] | Observer
"""Gets the name and the details of each event, as the journal has them; what it raises ends the run.

An `Observer`, such as `chunkvisor.show.lines.Console()`, may stand in its place.
"""

StrPath: TypeAlias = str | os.PathLike[str]

_OUTPUT = "embeddings"
_LOG_LINES = 20
_NOT_KEPT = "The work was done in a temporary folder, which is removed; give a workdir to keep it."


class QuarantineWarning(UserWarning):
    """Some rows could not be encoded; they are NaN, or what the form of the final has instead."""


@called_from_python
def run(
    config_path: StrPath,
    *,
    set: Iterable[str] = (),  # noqa: A002 - as the command's option is called
    max_rows: int | None = None,
    from_scratch: bool = False,
    update: bool = False,
    stop_after: float | str | None = None,
    progress: bool | None = None,
    on_event: OnEvent | None = None,
) -> Report:
    """Run the job of a config, as `chunkvisor run` does; however it ended, the same call again continues it.

    Returns a Report: the final files by name, and the rows that cannot be encoded. Those are NaN (zeros or null in
    some forms), and warned of (QuarantineWarning). Raises ChunkvisorError with the message and the code of the command;
    KeyboardInterrupt after SIGINT, once the chunks under way are done. Outside the main thread signals are not caught.
    """
    loaded = load(Path(config_path), tuple(set))
    if max_rows is not None:
        loaded = loaded.trial(max_rows)
    request = Request(loaded, max_rows, from_scratch, update, stop_after_s=_in_seconds(stop_after))
    return _run(request, on_event, progress)


@called_from_python
def encode(
    texts: Iterable[str | None] | Iterable[Mapping[str, Any]],
    *,
    model: StrPath,
    column: str | None = None,
    workdir: StrPath | None = None,
    chunk_size: int | str = 1000,
    device: str | list[str] = "cuda",
    encoder: str = "sentence-transformers",
    revision: str | None = None,
    dtype: str = "auto",
    max_length: int | None = None,
    pooling: str | None = None,
    trust_remote_code: bool | None = None,
    kwargs: Mapping[str, Any] | None = None,
    expect: StrPath | None = None,
    batch_size: int | str = "auto",
    batch_tokens: int | str | None = "auto",
    normalize: bool = False,
    prompt: str | None = None,
    prompt_name: str | None = None,
    task: str | None = None,
    truncate_dim: int | None = None,
    set: Iterable[str] = (),  # noqa: A002 - as the command's option is called
    from_scratch: bool = False,
    update: bool = False,
    stop_after: float | str | None = None,
    progress: bool | None = None,
    on_event: OnEvent | None = None,
) -> npt.NDArray[np.float32]:
    """Return the vectors of the texts, float32 of shape (texts, dimension); row i belongs to text i.

    >>> vectors = chunkvisor.encode(titles, model="sentence-transformers/all-MiniLM-L6-v2", workdir="cache/titles")

    Each chunk of texts is encoded in its own process, which may crash. With a `workdir` the work is kept, and the
    same call continues it. Relative paths start in the current folder, where a plug-in `encoder` is looked for.

    Texts that cannot be encoded are NaN, and warned of (QuarantineWarning). Raises ChunkvisorError, whose attributes
    say what happened, why, what to do, and which log to open; KeyboardInterrupt after Ctrl-C or a notebook's stop
    button, with a `workdir` once the chunks under way are done. News goes to the logger "chunkvisor".
    """
    name, kwargs = os.fspath(model) if isinstance(model, os.PathLike) else model, dict(kwargs or {})
    expect = os.fspath(expect) if isinstance(expect, os.PathLike) else expect
    values: dict[str, Any] = in_sections(locals()) | {"chunk": {"size": chunk_size}, "device": device}  # named as keys
    overrides, stop_after_s = tuple(set), _in_seconds(stop_after)
    with _workdir(workdir) as place, writing(texts, column, place) as write:
        given = CallOfTexts(partial(place_of, texts, column), place, kept=workdir is not None)
        try:
            loaded = _loaded(values | {"workdir": str(place)}, overrides, write)
            request = Request(loaded, None, from_scratch, update, stop_after_s=stop_after_s, keeps=given.kept)
            vectors = _run(request, on_event, progress, given).outputs[_OUTPUT].vectors()
        except ChunkvisorError as error:
            given.rename(error)
            raise
        return vectors if given.kept else np.array(vectors)


def _loaded(values: dict[str, Any], overrides: tuple[str, ...], write: Callable[[], Path]) -> LoadedConfig:
    """Return the config of a call. Validated before the texts are written: a typing error costs nothing then."""
    folder, output = Path.cwd(), {"source": str(Path(values["workdir"], "texts.jsonl")), "column": "text"}
    values["outputs"] = {_OUTPUT: output}
    if from_values(values, folder, overrides).outputs[_OUTPUT].where is not None:
        why = "texts are left out then, and encode returns a vector for each"
        raise config_error(f"outputs.{_OUTPUT}.where is for chunkvisor.run alone", why=why)
    output["source"] = str(write())
    config = from_values(values, folder, overrides)
    return LoadedConfig(config, folder / "(Python)", folder, overrides, Given.ARGUMENTS)


class _Listener(Observer):
    """Hands events on to a function."""

    def __init__(self, on_event: Callable[[str, dict[str, Any]], None]) -> None:
        self._on_event = on_event

    def event(self, event: Event, state: RunState) -> None:  # noqa: ARG002 - an event says it all
        """Call the function."""
        self._on_event(event.name, event.details())


def _run(request: Request, on_event: OnEvent | None, progress: bool | None, texts: CallOfTexts | None = None) -> Report:
    listens, kept = on_event is not None, texts is None or texts.kept
    if not isinstance(on_event, Observer):
        progress = progress if progress is not None else on_event is None and is_watched()
        on_event = Observer() if on_event is None else _Listener(on_event)
    if isinstance(on_event, Console) and texts is not None:
        on_event.in_words = texts.in_words
    bars = list[Observer]()
    if progress:
        from chunkvisor.show.terminal import ProgressBar  # rich with it

        bars.append(ProgressBar("your texts" if texts else ""))
    logger = Logger(told=listens or bool(bars), in_words=texts.in_words if texts else str)
    try:
        run_session(request, Observers(on_event, guarded=[*bars, logger]))
    except ChunkvisorError as error:
        if error.code is ExitCode.INTERRUPTED:
            then = f"; {in_python(error.remedy)}" if kept else f". {_NOT_KEPT}"
            raise KeyboardInterrupt(error.what + then) from None
        if error.code is not ExitCode.QUARANTINED:
            if not kept:
                _lose_folder(error, Layout(request.loaded.config.workdir).output(_OUTPUT))
            raise
    report = Report.of(request.loaded.config)
    if report.quarantined:
        words = loss_in_words(report, texts.place if texts else None, kept=kept)
        warnings.warn(words, QuarantineWarning, stacklevel=4)  # of the line that calls `run` or `encode`
    return report


def _lose_folder(error: ChunkvisorError, layout: OutputLayout) -> None:
    """Add the end of the log to the error, whose temporary folder is removed."""
    error.remedy = error.remedy.replace(KEPT, "")
    if layout.attempts.exists():  # a worker was started
        error.add_note(_NOT_KEPT)
    if error.log is not None:
        with contextlib.suppress(OSError):
            if lines := error.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]:
                error.add_note("\n".join([f"The last lines of {error.log.name}:", *lines]))
        error.log = None


def _in_seconds(stop_after: float | str | None) -> float | None:
    try:
        return None if stop_after is None else seconds_of(stop_after)
    except ValueError as error:
        raise config_error(f"stop_after: {error}") from None


@contextlib.contextmanager
def _workdir(given: StrPath | None) -> Iterator[Path]:
    """Yield the folder to work in; a temporary one is removed, and so is an empty one after an error."""
    if given is None:
        with tempfile.TemporaryDirectory(prefix="chunkvisor-") as name:
            yield Path(name)
        return
    place = Path(given).absolute()
    ours = not place.exists()
    try:
        make_folders(place, mode=0o755)
    except OSError as error:
        raise config_error(f"the workdir {place} cannot be made: {error.strerror}") from None
    try:
        yield place
    except ChunkvisorError:
        if ours:
            with contextlib.suppress(OSError):  # there is something in it
                place.rmdir()
        raise
