"""The Python interface: `chunkvisor.encode` and `chunkvisor.run`.

Workers are started as the command starts them, not by multiprocessing: a script needs no `__main__`
guard, and both functions work in a notebook or a thread.
"""

import contextlib
import filecmp
import functools
import hashlib
import inspect
import json
import math
import numbers
import os
import re
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from chunkvisor.commands.onefile import OUTPUT
from chunkvisor.config.load import LoadedConfig, RowChoice, from_values, in_sections, load
from chunkvisor.config.model import Config, EncodeConfig, ModelConfig, seconds_of
from chunkvisor.engine.modelfolder import read_model_folder
from chunkvisor.errors import KEPT, ChunkvisorError, ExitCode, config_error
from chunkvisor.events.event import Event
from chunkvisor.results import Report, loss_in_words
from chunkvisor.show.lines import Console, Logger, Observer, Observers, can_draw, is_watched
from chunkvisor.store.attempt import read_tail
from chunkvisor.store.disk import halt_for
from chunkvisor.supervise.resources import Request
from chunkvisor.supervise.session import run as run_session
from chunkvisor.units import did_you_mean
from chunkvisor_worker.contract.files import make_folders

OnEvent: TypeAlias = Callable[[str, dict[str, Any]], None] | Observer
"""A function that gets the name and the details of each event, as the journal has them; or an
Observer, such as `chunkvisor.show.lines.Console()`. What it raises ends the run."""

StrPath: TypeAlias = str | os.PathLike[str]

P = ParamSpec("P")
T = TypeVar("T")

_TEXTS_FILE = re.compile(r"texts-[0-9a-f]{16}\.jsonl")
_NOT_KEPT = "The work and its logs were in a temporary folder, which is removed; give a workdir."
_OF_SENTENCE_TRANSFORMERS = {
    "convert_to_tensor": "torch.from_numpy(vectors)",
    "normalize_embeddings": "normalize",
    "precision": "sentence_transformers.quantize_embeddings(vectors, precision)",
    "show_progress_bar": "progress",
}
"""Arguments of `SentenceTransformer.encode` -> what to use here."""


_MEANINGS = {
    "texts": "A list, a generator, or a column of pandas, polars, NumPy, Arrow or datasets. None, "
    "NaN and NA are empty texts. An empty list gives an empty array.",
    "config_path": "A YAML config.",
    "model": "Name of a model on the hub, or the path of a model folder.",
    "workdir": "Folder for the work. The same call continues it after a stop or a kill, or finds "
    "it done; the array is mapped from a file there, which changes to the array leave alone. None "
    "= nothing is kept, and the array is in memory.",
    "chunk_size": "Distinct texts that one worker process encodes; auto = as many as a worker does "
    "in about 40 s.",
    "device": "cuda = every visible GPU; cuda:1; a list of these; cpu. A run never switches to the "
    "CPU.",
    "set": 'Values for other keys of the config, such as ["recovery.attempts=5", '
    '"workers.per_device=2"].',
    "max_rows": "A trial of the first rows, in a separate workdir, `<workdir>-first-<max_rows>`.",
    "from_scratch": "Discard what the workdir has. Without it, and without `update`, a workdir "
    "with other texts or settings is refused.",
    "update": "Accept other texts than before; only new ones are encoded.",
    "stop_after": 'Seconds, or a time such as "3h". With work left, the call raises '
    "ChunkvisorError (75).",
    "progress": "Show the progress; None = only in a terminal or a notebook, unless on_event is "
    "given.",
    "on_event": "A function that gets the name and the details (a dict) of each event. What it "
    "raises ends the run. chunkvisor.show.lines.Console() prints what the command prints.",
}
"""Meanings of the arguments that are not keys of the sections `model` and `encode`."""


def called_from_python(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a public function: its help lists the arguments, and its errors name them.

    A traceback ends at the caller's line: a notebook would print the signature of every frame, and
    the message has to be in the last lines.
    """
    known = meanings(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # in pytest
        try:
            for name in kwargs:
                if name in known:
                    continue
                ours = _OF_SENTENCE_TRANSFORMERS.get(name)
                hint = f"use {ours}" if ours else did_you_mean(name, known)
                raise config_error(
                    f"{function.__name__} has no argument {name}; {hint}", "Correct the call."
                )
            return function(*args, **kwargs)
        except ChunkvisorError as error:
            error.what = in_python(error.what)
            error.remedy = in_python(error.remedy)
            end = error
        raise end.with_traceback(None) from None

    lines = [inspect.getdoc(function) or "", "", "Arguments:", ""]
    for name, words in known.items():
        lines.append(
            textwrap.fill(f"- {name}: {words}", 100, subsequent_indent="  ", break_on_hyphens=False)
        )
    call.__doc__ = "\n".join(lines)
    return call


def meanings(function: Callable[..., Any]) -> dict[str, str]:
    """Return what each argument of the function means, in the order of its signature."""
    # of two `kwargs` the model's are the argument
    fields = EncodeConfig.model_fields | ModelConfig.model_fields
    known = {
        name: (field.description or "").replace("null", "None") for name, field in fields.items()
    } | _MEANINGS
    return {name: known[name] for name in inspect.signature(function).parameters}


_COMMAND_WORDS = (
    (r"\bRun (?:the same command )?again\b", "Call it again"),
    (r"\brun (?:the same command )?again\b", "call it again"),
    (r"--from-scratch\b", "from_scratch=True"),
    (r"--update\b", "update=True"),
    (r"(?m)^--set ", "set "),
    (r"--set (\S*\w)", r'set=["\1"]'),
)
"""Patterns of the command's words -> what to say in Python."""


def in_python(words: str) -> str:
    """Replace options of the command by arguments: `--from-scratch` by `from_scratch=True`."""
    for pattern, ours in _COMMAND_WORDS:
        words = re.sub(pattern, ours, words)
    return words


_LINE = re.compile(rf"(?:/[^:\n]*)?/{_TEXTS_FILE.pattern}:(\d+)")
"""Matches the place of a text in the file to which `write_texts` writes them, such as
`/cache/texts-0123456789abcdef.jsonl:8`."""


def _with_places(words: str) -> str:
    """Replace a place in the texts' file, `…/texts-….jsonl:8`, by that in the call, `texts[7]`."""
    return _LINE.sub(lambda found: _place_in_call(int(found[1]) - 1), words)


class QuarantineWarning(UserWarning):
    """Some rows could not be encoded: they are NaN in an array, and null in a table."""


@called_from_python
def run(
    config_path: StrPath,
    *,
    set: str | Iterable[str] = (),  # noqa: A002 - as the command's option is called
    max_rows: int | None = None,
    from_scratch: bool = False,
    update: bool = False,
    stop_after: float | str | None = None,
    progress: bool | None = None,
    on_event: OnEvent | None = None,
) -> Report:
    """Run the job of a config, as `chunkvisor run` does.

    However it ended, the same call again continues it.

    Returns a Report: the final files by name, and the rows that cannot be encoded. Those are NaN,
    or null in a table, and warned of (QuarantineWarning). Raises ChunkvisorError with the message
    and the code of the command; KeyboardInterrupt after SIGINT, once the chunks in progress are
    done; SystemExit(143) after SIGTERM. Signals are caught in the main thread only.
    """
    rows = RowChoice(max_rows)
    loaded = load(Path(config_path), _overrides(set)).of_rows(rows)
    request = Request(loaded, rows, from_scratch, update, stop_after_s=_in_seconds(stop_after))
    return _run(request, on_event, progress)


@called_from_python
def encode(  # noqa: PLR0913 - each is a key of the config
    texts: Iterable[str | None],
    *,
    model: StrPath,
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
    set: str | Iterable[str] = (),  # noqa: A002 - as the command's option is called
    from_scratch: bool = False,
    update: bool = False,
    stop_after: float | str | None = None,
    progress: bool | None = None,
    on_event: OnEvent | None = None,
) -> npt.NDArray[np.float32]:
    """Return the vectors of the texts, float32 of shape (texts, dimension).

    Row i belongs to text i.

    >>> model = "sentence-transformers/all-MiniLM-L6-v2"
    >>> vectors = chunkvisor.encode(titles, model=model, workdir="cache/titles")

    Each chunk of texts is encoded in its own process, which may crash. With a `workdir` the work is
    kept, and the same call continues it. Relative paths start in the current folder, where a
    plug-in `encoder` is looked for.

    Texts that cannot be encoded are NaN, and warned of (QuarantineWarning). Raises ChunkvisorError,
    whose attributes say what happened, why, what to do, and which log to open; KeyboardInterrupt
    after Ctrl-C or a notebook's stop button, with a `workdir` once the chunks in progress are done;
    SystemExit(143) after SIGTERM. News goes to the logger "chunkvisor".
    """
    name = os.fspath(model) if isinstance(model, os.PathLike) else model
    kwargs = dict(kwargs or {})
    expect = os.fspath(expect) if isinstance(expect, os.PathLike) else expect
    # The other arguments have the names of keys of `model` and `encode`; `name` is the model's.
    values: dict[str, Any] = in_sections(locals()) | {
        "chunk": {"size": chunk_size},
        "device": device,
    }
    overrides = _overrides(set)
    stop_after_s = _in_seconds(stop_after)
    folder = Path.cwd()
    with _workdir(workdir) as work:
        keeps = workdir is not None
        earlier = [path for path in work.iterdir() if _TEXTS_FILE.fullmatch(path.name)]
        output = {"source": str(work / "texts.jsonl"), "column": "text"}
        values |= {"workdir": str(work), "outputs": {OUTPUT: output}}
        try:
            # Before the texts are read: a typing error costs nothing then.
            config = from_values(values, folder, overrides)
            if config.outputs[OUTPUT].where:
                raise config_error(
                    f"outputs.{OUTPUT}.where is only for chunkvisor.run",
                    "Leave it out, or use a config.",
                    why="texts are left out then, and encode returns a vector for each",
                )
            source = write_texts(texts, work)
            if source is None:
                return np.empty((0, _dimension(config)), np.float32)
            output["source"] = str(source)
            config = from_values(values, folder, overrides)
            loaded = LoadedConfig(config, folder / "(Python)", folder, overrides)
            request = Request(
                loaded,
                from_scratch=from_scratch,
                update=update,
                stop_after_s=stop_after_s,
                keeps=keeps,
            )
            vectors = _run(request, on_event, progress, _place_in_call).outputs[OUTPUT].vectors()
        except ChunkvisorError as error:
            error.what = _with_places(error.what)
            raise
        for path in earlier:
            if path != source:
                path.unlink(missing_ok=True)
        return vectors if keeps else np.array(vectors)


def _place_in_call(index: int) -> str:
    """Name a text by its place in the argument `texts`."""
    return f"texts[{index}]"


def write_texts(given: Any, folder: Path) -> Path | None:
    """Write the texts as JSON lines to a file named by their digest; None if there are no texts.

    Raises Halt: 78 for what is not a text, 74 for a full disk; OSError; what iterating over `given`
    raises.
    """
    # Iterating over a table gives no texts. Those of pandas and polars have `columns`, those of
    # datasets and pyarrow `column_names`.
    is_table = hasattr(given, "columns") or hasattr(given, "column_names")
    if (
        is_table
        or isinstance(given, str | bytes | os.PathLike | set | frozenset | Mapping)
        or not isinstance(given, Iterable)
    ):
        raise config_error(
            f"texts is a {type(given).__name__}",
            "Give a list of strings, in an order: [text], sorted(texts) of a set, or table['name'] "
            "of a table.",
        )
    digest = hashlib.sha256()
    partial = Path()
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".texts-", suffix=".tmp")
        partial = Path(name)
        with open(handle, "wb") as file:
            for index, text in enumerate(given):
                line = _json_line(text, index)
                digest.update(line)
                file.write(line)
            file.flush()
            os.fsync(file.fileno())
            if not file.tell():
                return None
        path = folder / f"texts-{digest.hexdigest()[:16]}.jsonl"
        # A file that is equal keeps its times: the source counts as untouched, and is not read
        # again.
        if not path.exists() or not filecmp.cmp(partial, path, shallow=False):
            partial.replace(path)
    except OSError as error:
        raise halt_for(error, folder) or error from None
    finally:
        if partial.name:
            partial.unlink(missing_ok=True)
    return path


def _json_line(text: Any, index: int) -> bytes:
    """Return a line such as `{"text": "some words"}`; None, NaN and NA are empty texts.

    Raises Halt (78) for what is not a text, naming it by its `index`.
    """
    text = text.as_py() if hasattr(text, "as_py") else text  # pyarrow's
    if type(text).__name__ == "NAType" or (isinstance(text, numbers.Real) and math.isnan(text)):
        text = None  # of pandas
    if text is not None and not isinstance(text, str):
        raise config_error(
            f"{_place_in_call(index)} is not a string: {type(text).__name__} {text!r:.60}",
            "Convert it, or give None for an empty text; of rows, give one of their keys.",
        )
    try:
        return json.dumps({"text": text or ""}, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise config_error(
            f"{_place_in_call(index)} has a lone surrogate, {error.object[error.start]!r}",
            "Correct it: it is half of a character, such as an emoji cut in two.",
        ) from None


def _overrides(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return each KEY=VALUE of the argument `set`, which may be a single text."""
    return (given,) if isinstance(given, str) else tuple(given)


def _dimension(config: Config) -> int:
    """Return the dimension that the files of a local model name, else 0. No worker is started."""
    if not config.model.is_folder:
        return 0
    whole = read_model_folder(Path(config.model.name)).dimension or 0
    return min(whole, config.effective_encode(OUTPUT).truncate_dim or whole)


class _Listener(Observer):
    """Calls a function with the name and the details of each event."""

    def __init__(self, on_event: Callable[[str, dict[str, Any]], None]) -> None:
        self._on_event = on_event

    def event(self, event: Event) -> None:
        """Call the function."""
        self._on_event(event.name, event.details())


def _run(
    request: Request,
    on_event: OnEvent | None,
    progress: bool | None,
    place: Callable[[int], str] | None = None,
) -> Report:
    """Run the request, show it, and return its report.

    `place` names a text by its position, for `encode`; the lines then have such names too.
    Raises as `run`.
    """
    listens = on_event is not None
    in_words = _with_places if place else str
    if not isinstance(on_event, Observer):
        progress = progress if progress is not None else on_event is None and is_watched()
        on_event = Observer() if on_event is None else _Listener(on_event)
    elif isinstance(on_event, Console):
        on_event.in_words = in_words
    shown = list[Observer]()
    if progress and can_draw(sys.stderr):
        from chunkvisor.show.terminal import Live  # rich with it

        shown.append(Live(sys.stderr))
    elif progress:
        console = Console()
        console.in_words = in_words
        shown.append(console)
    logger = Logger(is_shown=listens or bool(shown), in_words=in_words)
    try:
        run_session(request, Observers(on_event, guarded=[*shown, logger]))
    except ChunkvisorError as error:
        if not request.keeps:
            if error.log:
                error.add_note(f"The end of the log:\n{read_tail(error.log)[-2000:]}")
            error.log = None
            words = error.remedy.replace(KEPT, "").replace(" to continue", "")
            error.remedy = f"{words} {_NOT_KEPT}"
        # `except Exception` catches neither, and so does not swallow a signal.
        if error.code is ExitCode.INTERRUPTED:
            raise KeyboardInterrupt(f"{error.what}. {in_python(error.remedy)}") from None
        if error.code is ExitCode.TERMINATED:
            raise SystemExit(int(error.code)) from None
        if error.code is not ExitCode.QUARANTINED:
            raise
    report = Report.of(request.loaded.config)
    if report.quarantined:
        words = loss_in_words(report, place, kept=request.keeps)
        # Four frames up is the line that calls `run` or `encode`.
        warnings.warn(words, QuarantineWarning, stacklevel=4)
    return report


def _in_seconds(stop_after: float | str | None) -> float | None:
    """Return the seconds of the argument. Raises Halt (78) if it is not a time."""
    try:
        return seconds_of(stop_after)
    except ValueError as error:
        raise config_error(
            f"stop_after: {error}", "Give seconds, or a time such as '3h'."
        ) from None


@contextlib.contextmanager
def _workdir(given: StrPath | None) -> Iterator[Path]:
    """Yield the folder to work in; a temporary one is removed in the end."""
    if given is None:
        with tempfile.TemporaryDirectory(
            prefix="chunkvisor-", ignore_cleanup_errors=True
        ) as temporary:
            yield Path(temporary)
        return
    place = Path(given).absolute()
    try:
        make_folders(place, mode=0o755)
    except OSError as error:
        raise config_error(
            f"the workdir {place} cannot be made: {error.strerror}", "Choose another folder."
        ) from None
    yield place
