"""The edge of a call from Python: what its arguments mean, what to write for others, and errors in its words."""

import difflib
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from chunkvisor.config.load import dotted_keys
from chunkvisor.config.model import EncodeConfig, ModelConfig
from chunkvisor.errors import ChunkvisorError

P = ParamSpec("P")
T = TypeVar("T")

_MEANINGS = {
    "texts": "A list, a generator, a column of pandas, polars, NumPy, Arrow or datasets: whatever can be iterated once."
    " None counts as an empty text. pandas has NaN for a missing text, which is refused: write texts.fillna('').",
    "config_path": "A YAML config; `chunkvisor init` writes one with every key explained.",
    "model": "Name of a model on the hub, or the path of a model's folder, which needs no hub.",
    "column": "The texts are this column of a table (a DataFrame of pandas or polars, a pyarrow.Table, a "
    "datasets.Dataset), or this key of rows that are mappings.",
    "workdir": "Folder in which the work is kept. The same call continues it after a stop or a kill, or finds it done; "
    "the array is mapped from a file there, read-only. None = all is temporary, and the array is in memory.",
    "chunk_size": "Distinct texts that one worker process encodes; a fault costs at most this much work. auto = as many"
    " as a worker does in about 40 s.",
    "device": "cuda = every GPU that is visible; cuda:1; a list of such; cpu. A run never switches to the CPU by "
    "itself.",
    "set": 'Values for keys of the config that are no arguments, such as ["recovery.attempts=5", '
    '"workers.per_device=2"]; docs/reference/config.md has all keys.',
    "max_rows": "A trial of the first rows, in a separate workdir, `<workdir>-first-<max_rows>`.",
    "from_scratch": "Discard what the workdir has, and encode everything anew. Without it, and without `update`, a "
    "workdir with vectors of other texts or of other settings is refused.",
    "update": "Take other texts than those that the workdir has vectors of: only texts that are new are encoded.",
    "stop_after": 'Seconds, or a time such as "3h", within which the call ends. If work is left then, it raises '
    "ChunkvisorError with code 75; the same call continues.",
    "progress": "True = a progress bar; False = none; None = one in a terminal or a notebook, unless on_event is "
    "given.",
    "on_event": "A function that gets the name and the details (a dict) of each event; docs/reference/events.md lists "
    "them. What it raises ends the run. chunkvisor.show.lines.Console() prints what the command prints.",
}
"""What the arguments mean that are no keys of the sections `model` and `encode`; those keys have descriptions."""

_INSTEAD = {
    "normalize_embeddings": "write normalize=…",
    "show_progress_bar": "write progress=…",
    "model_name": "write model=…",
    "model_name_or_path": "write model=…",
    "torch_dtype": "write dtype=…",
    "max_seq_length": "write max_length=…",
    "model_kwargs": "write kwargs=…",
    "target_devices": "write device=…",
    "sentences": "give the texts first: encode(texts, model=…)",
    "inputs": "give the texts first: encode(texts, model=…)",
    "convert_to_numpy": "leave it out: a NumPy array comes back",
    "convert_to_tensor": "leave it out: a NumPy array comes back, and torch.from_numpy(vectors) makes a tensor of it",
    "precision": 'set=["outputs.embeddings.dtype=int8"], or ubinary',
    "prompts": 'kwargs={"prompts": …}',
    "backend": "torch computes; OpenVINO is a plug-in encoder, see examples/openvino",
    "cache_folder": "set HF_HOME in the environment, where models are downloaded to",
    "token": "set HF_TOKEN in the environment, or run `hf auth login` once",
    "num_workers": 'set=["workers.per_device=2"], or more entries in device',
    "resume": "leave it out: the same call continues where the last one ended",
}
"""What does the same as an argument that sentence-transformers, or habit, suggests."""


def called_from_python(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap the function: unknown arguments are answered by name, and errors speak of arguments, without our frames.

    The call raises TypeError for wrong arguments, and what the function raises.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # in pytest
        if problem := _problem_of_call(function, args, kwargs):
            raise TypeError(problem)
        try:
            return function(*args, **kwargs)
        except ChunkvisorError as error:
            # A notebook shows the signature of every frame: what went wrong is to be in the last lines.
            error.what, error.remedy = in_python(error.what), in_python(error.remedy)
            end = error
        raise end.with_traceback(None) from None

    lines = [inspect.getdoc(function) or "", "", "Arguments:", ""]
    for name, words in meanings(function).items():
        lines.append(textwrap.fill(f"- {name}: {words}", 100, subsequent_indent="  ", break_on_hyphens=False))
    call.__doc__ = "\n".join(lines)
    return call


def meanings(function: Callable[..., Any]) -> dict[str, str]:
    """Return what each argument of the function means, in the order of its signature."""
    fields = EncodeConfig.model_fields | ModelConfig.model_fields  # of two `kwargs` the model's are the argument
    known = {name: (field.description or "").replace("null", "None") for name, field in fields.items()} | _MEANINGS
    return {name: known[name] for name in inspect.signature(function).parameters}


def _problem_of_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Say what is wrong with the arguments, one a line; empty if nothing is."""
    name, parameters = f"chunkvisor.{function.__name__}", inspect.signature(function).parameters
    problems = []
    for given in [given for given in kwargs if given not in parameters]:
        answer = f"help({name}) shows those it has"
        if given in _INSTEAD:
            answer = _INSTEAD[given]
        elif near := difflib.get_close_matches(given, parameters, 1):
            answer = f"did you mean {near[0]}?"
        elif keys := [key for key in dotted_keys() if key.rpartition(".")[2] == given]:
            answer = f'write set=["{keys[0]}=…"]'
        problems.append(f"{name} has no argument {given}: {answer}")
    if not problems:
        try:
            inspect.signature(function).bind(*args, **kwargs)
        except TypeError as error:
            problems.append(f"{name}: {error}")
    return "\n".join(problems)


_COMMAND_WORDS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"\b([Rr])un (?:the same command )?again\b", lambda found: f"{'C' if found[1] == 'R' else 'c'}all it again"),
    (r"--(from-scratch|update)\b", lambda found: f"{found[1].replace('-', '_')}=True"),
    (r"(?m)^--set ", lambda _found: "set "),
    (r"--set (\S*\w)", lambda found: f'set=["{found[1]}"]'),
)


def in_python(words: str) -> str:
    """Return the words with arguments in place of the command's options."""
    for pattern, say in _COMMAND_WORDS:
        words = re.sub(pattern, say, words)
    return words


_LINE = re.compile(r"(?:/[^:\n]*)?/texts-[0-9a-f]{16}\.jsonl:(\d+)")
"""Where a text stands in the file that `encode` has written of those that it was given."""
_KEY = re.compile(
    r"\b(?:(chunk)\.(?=size)|(?:outputs\.embeddings\.)?(?:model|encode)\.)"
    r"(?=(?:batch_|dtype|max_|normalize|prompt|revision|size|task|trust_|truncate_|encoder|kwargs|pooling|expect))"
)


@dataclass(frozen=True, slots=True)
class CallOfTexts:
    """A call of `encode`, in the words of its caller, who knows neither a config nor a file of the texts."""

    place: Callable[[int], str]
    """Where the text of that number stands: `texts[7]`, `texts.iloc[7]`."""
    workdir: Path
    kept: bool
    """Otherwise the workdir is a temporary folder, which is gone when the caller reads of it."""

    def in_words(self, line: str) -> str:
        """Return a line of the run's news."""
        line = self._placed(line).removesuffix("; `where` leaves them out")  # a key of the config
        if self.kept:
            return line
        folder = re.escape(str(self.workdir))
        return re.sub(folder, "a temporary folder", re.sub(rf", {folder}/\S+$", "", line))

    def rename(self, error: ChunkvisorError) -> None:
        """Name the arguments of the call in an error, in place of keys and files."""
        error.what = self._placed(error.what).replace("\n  source: ", "\n  texts: ")
        for part in ("what", "why", "remedy"):
            words = _KEY.sub(lambda key: f"{key[1]}_" if key[1] else "", getattr(error, part))
            words = words.replace("`chunkvisor doctor CONFIG`", "`chunkvisor doctor` on the command line")
            setattr(error, part, words.replace("model.name", "model"))

    def _placed(self, words: str) -> str:
        return _LINE.sub(lambda found: self.place(int(found[1]) - 1), words)
