"""The arguments of `chunkvisor.encode` and `chunkvisor.run`: what each means, and what to write for others."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from chunkvisor.config.load import dotted_keys
from chunkvisor.config.model import EncodeConfig, ModelConfig

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


def meanings(function: Callable[..., Any]) -> dict[str, str]:
    """What each argument of the function means, in the order of its signature."""
    sections: tuple[type[BaseModel], ...] = (EncodeConfig, ModelConfig)  # of two `kwargs` the model's are the argument
    keys = {
        name: (field.description or "").replace("null", "None")
        for section in sections
        for name, field in section.model_fields.items()
    }
    return {name: (keys | _MEANINGS)[name] for name in inspect.signature(function).parameters}


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
    "backend": "torch computes; OpenVINO is a plug-in encoder, see examples/openvino",
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
    if given in _INSTEAD:
        return _INSTEAD[given]
    if near := difflib.get_close_matches(given, parameters, 1):
        return f"did you mean {near[0]}?"
    if key := next((key for key in dotted_keys() if given in (key.rpartition(".")[2], key.replace(".", "_"))), None):
        return f'write set=["{key}=…"]'
    return f"help(chunkvisor.{function}) shows those it has"
