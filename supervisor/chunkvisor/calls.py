"""The edge of a call from Python: unknown arguments are answered by name, errors come with few frames.

A notebook shows the signature of every frame and the code around it: what went wrong is to be in the last lines.
"""

import difflib
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel

from chunkvisor.config.keys import dotted_keys
from chunkvisor.config.modelsection import ModelConfig
from chunkvisor.config.sections import EncodeConfig
from chunkvisor.errors import ChunkvisorError

P = ParamSpec("P")
T = TypeVar("T")

_HANGING: dict[str, Any] = {"initial_indent": "- ", "subsequent_indent": "  ", "break_on_hyphens": False}

_ALWAYS_NUMPY = "leave it out: a NumPy array comes back"
_HUB_ACCESS = "set HF_TOKEN in the environment, or run `hf auth login` once"
_HUB_CACHE = "set HF_HOME in the environment, where models are downloaded to"
_GOES_ON = "leave it out: the same call continues where the last one ended"

_SAME = {
    "normalize_embeddings": "normalize",
    "show_progress_bar": "progress",
    "show_progress": "progress",
    "model_name": "model",
    "model_name_or_path": "model",
    "torch_dtype": "dtype",
    "max_seq_length": "max_length",
    "model_kwargs": "kwargs",
    "devices": "device",
    "pool": "device",
    "target_devices": "device",
    "max_batch_tokens": "batch_tokens",
}
"""What sentence-transformers, or habit, calls an argument that is here, and its name; the values mean the same."""

_INSTEAD = {
    "sentences": "give the texts first: encode(texts, model=…)",
    "inputs": "give the texts first: encode(texts, model=…)",
    "convert_to_numpy": _ALWAYS_NUMPY,
    "convert_to_tensor": f"{_ALWAYS_NUMPY}, and torch.from_numpy(vectors) makes a tensor of it",
    "output_value": "leave it out: one vector for each text comes back",
    "precision": 'set=["outputs.embeddings.dtype=int8"], or ubinary',
    "processing_kwargs": "max_length=… is what of them is here",
    "prompts": 'kwargs={"prompts": …}',
    "task": "prompt_name=…, where the model has a prompt for it",
    "local_files_only": "set HF_HUB_OFFLINE=1 in the environment",
    "cache_dir": _HUB_CACHE,
    "cache_folder": _HUB_CACHE,
    "token": _HUB_ACCESS,
    "use_auth_token": _HUB_ACCESS,
    "workers": 'set=["workers.per_device=2"], or more entries in device',
    "num_workers": 'set=["workers.per_device=2"], or more entries in device',
    "resume": _GOES_ON,
    "dry_run": "`chunkvisor plan CONFIG` on the command line shows what a run would do",
    "limit": "max_rows=… of chunkvisor.run tries the first rows",
}
"""What does the same where no argument of another name does."""


def called_from_python(function: Callable[P, T]) -> Callable[P, T]:
    """The function, with arguments that it has not answered by what does the same, and errors without our frames.

    The call raises TypeError for such arguments, and what the function raises.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if problem := problem_of_call(function, args, kwargs):
            raise TypeError(problem)
        try:
            return function(*args, **kwargs)
        except ChunkvisorError as error:
            error.what, error.remedy = _OVERRIDE.sub("set ", error.what), in_python(error.remedy)
            if function.__name__ == "encode":
                error.what = named_as_arguments(_LINE.sub(lambda line: f"texts[{int(line[1]) - 1}]", error.what))
                for part in ("what", "why", "remedy"):
                    setattr(error, part, without_config(getattr(error, part)))
            end: BaseException = error
        except KeyboardInterrupt as interrupt:
            if not interrupt.args:
                raise  # while the texts were read: the frames are the caller's
            end = interrupt
        raise end.with_traceback(None) from None

    call.__doc__ = _with_meanings(function)
    return call


def _with_meanings(function: Callable[..., Any]) -> str:
    """Its docstring, and what the keys of the config mean that are arguments of it: `help` is to be enough."""
    sections: tuple[type[BaseModel], ...] = (ModelConfig, EncodeConfig)
    fields = {name: field for section in sections for name, field in section.model_fields.items()}
    lines = [
        textwrap.fill(f"{name}: {(fields[name].description or '').replace('null', 'None')}", 100, **_HANGING)
        for name in inspect.signature(function).parameters
        if name in fields
    ]
    return "\n".join([inspect.getdoc(function) or "", *([""] if lines else []), *lines])


def problem_of_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """What is wrong with the arguments, one a line, in words that say what to write; empty where nothing is."""
    name, parameters = function.__name__, inspect.signature(function).parameters
    positional = [each for each in parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    problems = [
        f"chunkvisor.{name} has no argument {given}: {_answer(name, given, value, parameters)}"
        for given, value in kwargs.items()
        if given not in parameters
    ]
    if len(args) > len(positional):
        first = positional[0].name
        problems.append(f"chunkvisor.{name} takes {first} alone by its place: write the others as name=value")
    elif not problems:
        missing = [each.name for each in parameters.values() if each.default is each.empty and each.name not in kwargs]
        for each in missing[len(args) :]:
            problems.append(f"chunkvisor.{name} needs {each}=…{_NEEDED.get(each, '')}")
    return "\n".join(problems)


_NEEDED = {
    "model": ": the name of a model on the hub, or the path of a model's folder",
    "texts": ": a list of strings, or a column of a table",
    "config_path": ": the path of a YAML config; `chunkvisor init` writes one",
}


def _answer(function: str, given: str, value: object, parameters: Mapping[str, inspect.Parameter]) -> str:
    if (same := _SAME.get(given)) in parameters:
        plain = value is None or isinstance(value, bool | int | str)
        return f"write {same}={f'{value!r:.60}' if plain else '…'}"
    if function == "encode" and given in _INSTEAD:
        return _INSTEAD[given]
    if near := difflib.get_close_matches(given, parameters, 1):
        return f"did you mean {near[0]}?"
    if key := next((key for key in dotted_keys() if given in (key.rpartition(".")[2], key.replace(".", "_"))), None):
        return f'write set=["{key}=…"]'
    return _INSTEAD.get(given, f"help(chunkvisor.{function}) shows those it has")


_AGAIN = re.compile(r"\b([Rr])un (?:the same command )?again\b")
_FLAG = re.compile(r"--(from-scratch|update)\b")
_VALUE = re.compile(r"--set (\S*\w)")


def in_python(words: str) -> str:
    """What to do, with arguments in place of the command's options."""
    words = _AGAIN.sub(lambda run: f"{'C' if run[1] == 'R' else 'c'}all it again", words)
    words = _FLAG.sub(lambda flag: f"{flag[1].replace('-', '_')}=True", words)
    return _VALUE.sub(lambda given: f'set=["{given[1]}"]', words)


_LINE = re.compile(r"(?:/[^:\n]*)?/texts-[0-9a-f]{16}\.jsonl:(\d+)")
"""Where a text stands in the file that `encode` has written of those that it was given."""
_OVERRIDE = re.compile(r"^--set ", re.MULTILINE)
_KEY = re.compile(
    r"^( *)(?:(model)\.name|(chunk)\.(?=size)|(?:outputs\.embeddings\.)?(?:model|encode)\.)(?=\w*: )", re.MULTILINE
)
_PLAIN = re.compile(r"\b(false|true|null) (before|now)\b")
_IN_PYTHON = {"false": "False", "true": "True", "null": "None"}


def named_as_arguments(problems: str) -> str:
    """What is wrong with values, a line each, with arguments of `encode` in place of the keys that they stand for."""
    problems = _PLAIN.sub(
        lambda value: f"{_IN_PYTHON[value[1]]} {value[2]}", problems.replace("\n  source: ", "\n  texts: ")
    )
    return _KEY.sub(lambda key: key[1] + (key[2] or (f"{key[3]}_" if key[3] else "")), problems)


_SECTION = re.compile(r"\b(?:model|encode)\.(?=(?:dtype|max_length|revision|trust_remote_code|batch_\w+)\b)")


def without_config(words: str) -> str:
    """What to do, for a call that has no config: with arguments in place of its keys."""
    words = words.replace("`chunkvisor doctor CONFIG`", "`chunkvisor doctor` on the command line")
    return _SECTION.sub("", words.replace("model.name", "model"))
