"""Loads the model, and checks that it is the one that its files describe.

What the files alone show is checked before any worker starts (`chunkvisor.engine.modelfolder`);
only loading shows weights drawn at random, a tokenizer of another model, a setting without effect.
"""

import inspect
import json
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chunkvisor_worker.contract.correctness import (
    install_for,
    kwargs_without_code,
    numbers_of,
)
from chunkvisor_worker.contract.files import read_json
from chunkvisor_worker.contract.messages import EncodeSpec, Loaded, ModelSpec
from chunkvisor_worker.contract.secrets import masked
from chunkvisor_worker.tokenizer import (
    WrongModelError,
    check_tokenizer,
    probe_ids,
    tokenizer_of_file,
    transformers_version,
)

# Keys of `model.kwargs` for SentenceTransformer itself; all others are for the transformers model.
CONSTRUCTOR_KWARGS = {
    "backend", "config_kwargs", "default_prompt_name", "model_kwargs", "processor_kwargs",
    "prompts", "tokenizer_kwargs",
}  # fmt: skip
# sentence-transformers knows these by their hub id, but is given the path of a snapshot.
EXCLUDE_PROMPT = frozenset(
    {"hkunlp/instructor-base", "hkunlp/instructor-large", "hkunlp/instructor-xl"}
)
# Modules of sentence-transformers that need nothing but the padded token ids.
TEXT_MODULES = frozenset({"Transformer", "Pooling", "Normalize", "Dense", "Dropout", "LayerNorm"})
NO_LIMIT = 10**9  # a tokenizer without a maximum length says 10**30
_MOST_NOTES = 20
_NOTE_CHARS = 300  # notes come with each result of a worker, so they are short
# A row of the table that transformers logs about weights.
_REPORTED = re.compile(
    r"^([\w.{}*, -]+?)\s*\|\s*(?:\x1b\[\d+m)?(MISSING|UNEXPECTED|MISMATCH)", re.MULTILINE
)
# The line about weights of transformers before 5, and the names in it.
_LISTED = re.compile(r"(not used when|newly initialized).*?: \[(.*)\]$", re.MULTILINE)
_NAME = re.compile(r"'([^']+)'")
_INDICES = re.compile(r"\{(\d+)[^}]*\}")  # numbers of several layers that share a row of that table
# A layer that sentence-transformers does not use: it pools by itself.
_POOLER = re.compile(r"(^|\.)pooler\.")
# Keys of `config_kwargs` that are not attributes of a config: they say how it is loaded.
_AUTO_CONFIG = frozenset(
    {"attn_implementation", "cache_dir", "code_revision", "dtype", "revision", "torch_dtype"}
)


class LoadLog(logging.Handler):
    """Takes in what the libraries warn of while a model is loaded."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.notes: list[str] = []
        self.made_up: list[str] = []  # names of weights that no file has: drawn at random
        self.left_over: list[str] = []  # names of weights that a file has, and the model lacks

    def emit(self, record: logging.LogRecord) -> None:
        """Take in a log record."""
        self.add_message(record.getMessage())
        if not record.name.startswith("transformers"):  # it prints its own
            sys.stderr.write(f"{record.getMessage()}\n")

    def add_message(self, text: str) -> None:
        """Take in one message: the names of weights in it, or else the whole as a note, once."""
        rows = _REPORTED.findall(text)
        for state, names in _LISTED.findall(text):
            state = "UNEXPECTED" if state.startswith("not used") else "MISSING"
            rows += [(name, state) for name in _NAME.findall(names)]
        self.made_up += [name for name, state in rows if state != "UNEXPECTED"]
        self.left_over += [name for name, state in rows if state == "UNEXPECTED"]
        line = " ".join(masked(text[: 10 * _NOTE_CHARS]).split())
        line = line if len(line) <= _NOTE_CHARS else line[: _NOTE_CHARS - 1] + "…"
        if line and not rows and line not in self.notes and len(self.notes) < _MOST_NOTES:
            self.notes.append(line)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Take in Python's warnings and all libraries' log records; they still reach the log."""
        from transformers.utils import logging as transformers_logging

        verbosity = transformers_logging.get_verbosity()
        show = warnings.showwarning
        loggers = [logging.getLogger(), logging.getLogger("transformers")]

        def shown(message: Any, category: Any, *others: Any, **named: Any) -> None:
            self.add_message(str(message))
            show(message, category, *others, **named)

        transformers_logging.set_verbosity(min(verbosity, logging.WARNING))
        warnings.showwarning = shown
        for logger in loggers:
            logger.addHandler(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(self)
            warnings.showwarning = show
            transformers_logging.set_verbosity(verbosity)


def use_hub(spec: ModelSpec) -> None:
    """Have libraries that are imported later use the cache `spec.hub`, and no network."""
    if spec.hub and Path(spec.hub).is_dir():
        places = dict.fromkeys(("HF_HUB_CACHE", "SENTENCE_TRANSFORMERS_HOME"), spec.hub)
        os.environ |= places | {"HF_HUB_OFFLINE": "1"}


def load_model(spec: ModelSpec, device: str, load_log: LoadLog) -> Any:
    """Return the checked SentenceTransformer in eval mode on `device`.

    Raises WrongModelError, ValueError for a setting that the model cannot have, and whatever the
    library raises.
    """
    from sentence_transformers import SentenceTransformer

    own, model_kwargs = split_kwargs(spec.kwargs)
    if own.get("backend", "torch") == "torch" and "torch_dtype" not in model_kwargs:
        name = "torch_dtype" if numbers_of(transformers_version()) < [4, 56] else "dtype"
        model_kwargs.setdefault(name, spec.dtype)
    with load_log.collecting():
        with _running_code_of(spec):
            model: Any = SentenceTransformer(
                spec.path or spec.name,
                # The revision of a local folder is our digest of it, which the library cannot know.
                revision=None if spec.path else spec.revision,
                # With a device map from the config, accelerate places the model.
                device=device if model_kwargs.get("device_map") is None else None,
                trust_remote_code=spec.trust_remote_code is True,
                model_kwargs=model_kwargs,
                **own,
            )
        if spec.pooling:  # instead of the one that the library has made up
            from sentence_transformers.sentence_transformer.modules import Pooling

            del model[1:]
            model.append(Pooling(model[0].get_embedding_dimension(), spec.pooling))
        if spec.name in EXCLUDE_PROMPT:
            model.set_pooling_include_prompt(False)
        _fit_length(model, spec.max_length)
        model.eval()
    # Those of a Router's routes are among the modules.
    backbones = [
        module.model
        for module in model.modules()
        if type(module).__name__ == "Transformer"
        and hasattr(getattr(module, "model", None), "config")
    ]
    _check_weights(load_log, backbones, spec)
    for backbone in backbones:
        _check_buffers(backbone, spec)
        asked = spec.kwargs.get("config_kwargs") or {}
        if "is_causal" in asked:
            # Loading sets it for some classes only, but all of them read it at each pass.
            backbone.config.is_causal = asked["is_causal"]
        _check_config_kwargs(backbone.config, asked)
    use_tokenizers_of_files(model, Path(spec.path or spec.name), spec.kwargs, load_log)
    return model


def use_tokenizers_of_files(
    model: Any, folder: Path, kwargs: dict[str, Any], load_log: LoadLog
) -> None:
    """Give each module of the model in `folder` the tokenizer that its tokenizer.json describes.

    Raises WrongModelError for a tokenizer that is not the model's.
    """
    for module, place in _placed(model, folder):
        tokenizer: Any = getattr(module, "tokenizer", None)
        if not hasattr(tokenizer, "name_or_path"):  # StaticEmbedding reads tokenizer.json itself
            continue
        named = Path(tokenizer.name_or_path)
        # a folder of another model, if the files name one
        own_folder = (named if named.is_dir() else folder) / place
        own = tokenizer_of_file(tokenizer, own_folder, kwargs)
        if own is not tokenizer:
            made = f"the tokenizer that {transformers_version()} makes of the model's folder"
            load_log.add_message(
                f"{made} ({type(tokenizer).__name__}) is not that of its tokenizer.json, which is "
                "used"
            )
            # A class that comes with the model may have no processor.
            holder = getattr(module, "processor", module)
            if holder is tokenizer:
                module.processor = own
            else:
                holder.tokenizer = own
        rows = table_rows(getattr(module, "model", None))
        for note in check_tokenizer(own, own_folder, kwargs, rows):
            load_log.add_message(note)


def _placed(model: Any, folder: Path) -> Iterator[tuple[Any, Path]]:
    """Yield each module, or those of a Router's routes, with its place in the model's folder."""
    saved = read_json(folder / "modules.json", list) or [{}]
    for module, entry in zip(model, saved, strict=False):
        place = Path(str(entry.get("path", "")))
        routes = read_json(folder / place / "router_config.json").get("structure")
        # The Router was called Asym before, and had its routes in config.json.
        routes = routes or read_json(folder / place / "config.json").get("structure") or {}
        for route, parts in routes.items():
            yield from zip(module.sub_modules[route], map(place.joinpath, parts), strict=False)
        if not routes:
            yield module, place


def split_kwargs(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `model.kwargs` into (SentenceTransformer's own, the transformers model's)."""
    own = {key: value for key, value in kwargs.items() if key in CONSTRUCTOR_KWARGS}
    rest = {key: value for key, value in kwargs.items() if key not in CONSTRUCTOR_KWARGS}
    return own, {**(own.pop("model_kwargs", None) or {}), **rest}


def is_placed_by_loading(spec: ModelSpec) -> bool:
    """Say whether loading puts the weights on their device, so that `.to()` must not."""
    own, model_kwargs = split_kwargs(spec.kwargs)
    saved = read_json(Path(spec.path or spec.name) / "config.json").get("quantization_config")
    asked = any(model_kwargs.get(key) is not None for key in ("quantization_config", "device_map"))
    return own.get("backend", "torch") != "torch" or asked or bool(saved)


def is_plain_text_model(model: Any) -> bool:
    """Say whether the modules need nothing but token ids, which can be made ahead of the device."""
    first = model[0]
    return (
        model.get_backend() == "torch"
        and type(first).__name__ == "Transformer"
        and all(type(module).__module__.startswith("sentence_transformers.") for module in model)
        and all(type(module).__name__ in TEXT_MODULES for module in model)
        and "processing_kwargs" in inspect.signature(first.preprocess).parameters
        and list(first.modality_config) == ["text"]
        and not first.processing_kwargs  # ours would override its padding or length
    )


def chosen_prompt(
    encode: EncodeSpec, prompts: Mapping[str, str], default_name: str | None
) -> str | None:
    """Choose the text that stands before every text, as the library's `encode` does.

    `prompts` are those of the loaded model by name. The parent has refused unknown names.
    """
    if encode.prompt is not None:
        return encode.prompt
    return prompts.get(encode.prompt_name or encode.task or default_name or "")


def max_length(model: Any) -> int | None:
    """Return the tokens that the model reads of a text, None if it has no limit."""
    length = model.max_seq_length
    return int(length) if length is not None and length < NO_LIMIT else None


def table_rows(transformer: Any) -> int | None:
    """Count the rows of a transformers model's table of token embeddings, None without a table."""
    try:
        table = transformer.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    rows: int | None = getattr(table, "num_embeddings", None)
    return rows


def _fit_length(model: Any, asked: int | None) -> None:
    """Set `model.max_length`. Raises ValueError if it is beyond the positions in config.json."""
    if asked is None:
        return
    config: Any = getattr(model.transformers_model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    limit = getattr(config, "max_position_embeddings", None)
    if isinstance(limit, int) and 0 < limit < asked:  # XLNet says -1
        raise ValueError(
            f"model.max_length is {asked}, but the model has positions for {limit} tokens only; "
            f"set it to {limit} or less, or to null for the model's own"
        )
    try:
        model.max_seq_length = asked
    except AttributeError as error:
        what = f"a model of {type(model[0]).__name__} has no length to set; set null"
        raise ValueError(f"model.max_length is {asked}, but {what}") from error


@contextmanager
def _running_code_of(spec: ModelSpec) -> Iterator[None]:
    """Make a context in which code that came with the model runs.

    An error in it that other versions of the libraries explain says which to install. New memory
    is filled with NaN, so that `_check_buffers` sees what the code has not filled.
    """
    if not spec.trust_remote_code:
        yield
        return
    import torch

    strict = torch.are_deterministic_algorithms_enabled()
    only_warn = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    except (AttributeError, ImportError, TypeError, KeyError) as error:
        # transformers puts a model's code into a package of that name.
        frames = traceback.extract_tb(error.__traceback__)
        own = any("transformers_modules" in frame.filename for frame in frames)
        absent = error.name if isinstance(error, ModuleNotFoundError) else "transformers"
        if not own or not str(absent).startswith("transformers"):
            raise
        raise WrongModelError(
            f"the code that comes with the model does not run under {transformers_version()}: "
            f"{error}. {_older(spec)} Or set model.trust_remote_code to false, to take the class "
            "of transformers, if it has one of this type. " + _lines_without_code(spec)
        ) from error
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=only_warn)


def _older(spec: ModelSpec) -> str:
    """Say what to install, if another transformers wrote the model's config.json."""
    config = read_json(_folder_of(spec) / "config.json")
    saved = str(config.get("transformers_version") or "4")
    if f"transformers {saved}" == transformers_version():
        return ""
    return f"Its config.json was written by version {saved}: {install_for(saved)}."


def _lines_without_code(spec: ModelSpec) -> str:
    """Say what to add to the config if the model's own code is left out; empty if nothing."""
    line = kwargs_without_code(_folder_of(spec), spec.kwargs)
    return f"Set `{line}`" if line else ""


def _check_weights(load_log: LoadLog, backbones: Iterable[Any], spec: ModelSpec) -> None:
    made_up = [name for name in load_log.made_up if not _POOLER.search(name)]
    if made_up:
        others = ""
        if load_log.left_over:
            others = f" The files have weights of other names: {_some(sorted(load_log.left_over))}."
        raise WrongModelError(
            "weights of the model are in none of its files, and were drawn at random: "
            f"{_some(sorted(made_up))}. Download the model again; or choose a checkpoint that was "
            f"saved from the class that its config.json names.{others}"
        )
    asked = spec.kwargs.get("config_kwargs") or {}
    unused = set[str]()
    for backbone in backbones:
        unused |= {name for name in load_log.left_over if _is_unused_layer(name, backbone, asked)}
    if unused:
        raise WrongModelError(
            "weights of the model's own layers are in its files and are not used: "
            f"{_some(sorted(unused))}. Its config.json describes other layers, or "
            f"{transformers_version()} has none of this kind. Take the config.json that was saved "
            f"with these weights. {_older(spec)}"
        )
    if load_log.left_over:
        load_log.add_message(
            "weights that the files have and the model does not use: "
            f"{_some(sorted(load_log.left_over))}"
        )


def _is_unused_layer(name: str, backbone: Any, asked: Mapping[str, Any]) -> bool:
    """Say whether a left-over weight belongs to a layer of the backbone.

    False for a head, which is not among the backbone's parts, and for positions and masks, which
    older versions saved with the weights. (A mask belongs to a module that has others in it, a
    weight to one that has none.)
    """
    parts = dict(backbone.named_children())
    prefix = backbone.base_model_prefix
    if prefix not in parts:
        name = name.removeprefix(f"{prefix}.")
    parent, _, last = _INDICES.sub(r"\1", name).rpartition(".")
    if name.partition(".")[0] not in parts or _POOLER.search(name):
        return False
    layers = backbone.config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    quantized = getattr(backbone.config, "quantization_config", None) is not None
    if quantized or {layers, "num_hidden_layers"} & set(asked):
        return False  # only kernels for quantized weights read it; or fewer layers are asked for
    try:
        module = backbone.get_submodule(parent)
    except AttributeError:
        return True
    return not any(module.children()) and getattr(module, last, None) is None


def _check_buffers(transformer: Any, spec: ModelSpec) -> None:
    """Refuse empty buffers: those that are not saved, which the model's code has to fill."""
    import torch

    empty = list[str]()
    for prefix, module in transformer.named_modules() if spec.trust_remote_code else ():
        for name in getattr(module, "_non_persistent_buffers_set", ()):
            buffer: Any = getattr(module, name, None)
            if torch.is_tensor(buffer) and buffer.numel() and buffer.dtype != torch.bool:
                floats = buffer.is_floating_point()
                unset = buffer.isnan() if floats else buffer == torch.iinfo(buffer.dtype).max
                if unset.any():
                    empty.append(f"{prefix}.{name}".lstrip("."))
    if empty:
        raise WrongModelError(
            f"the code that comes with the model has buffers that {transformers_version()} leaves "
            f"empty: {_some(empty)}. The vectors would be NaN, or finite and wrong. {_older(spec)}"
        )


def _check_config_kwargs(config: Any, asked: Mapping[str, Any]) -> None:
    for key, value in asked.items():
        found = getattr(config, key, None)
        wanted = json.dumps(value)
        plain = value is None or isinstance(value, bool | int | float | str)
        if key not in _AUTO_CONFIG and (found != value if plain else found is None):
            raise WrongModelError(
                f"model.kwargs has config_kwargs: {{{key}: {wanted}}}, which has no effect on this "
                f"model: {type(config).__name__} of {transformers_version()} has no such setting. "
                f'Leave it out; or copy the model\'s folder, write "{key}": {wanted} into its '
                "config.json, and give that folder as model.name."
            )


def check_attention(model: Any, spec: ModelSpec) -> bool | None:
    """Return whether a token sees only those before it; None if that is not known.

    Raises WrongModelError if the model's files say otherwise, or if it would read longer texts than
    it has positions for.
    """
    causal, positions = _try_tokens(model, spec)
    length = max_length(model)
    if positions is not None and (length is None or length > positions):
        raise WrongModelError(
            f"the model says that it reads {length or 'any number of'} tokens (max_seq_length in "
            "sentence_bert_config.json, or the tokenizer's), but it has positions for "
            f"{positions}: longer texts would fail. Set model.max_length to {positions}."
        )
    saved = read_json(_folder_of(spec) / "config.json")
    said = {**saved, **(spec.kwargs.get("config_kwargs") or {})}.get("is_causal")
    both_ways = getattr(
        getattr(model.transformers_model, "config", None), "use_bidirectional_attention", None
    )
    if causal and (said is False or both_ways is True):
        key = "is_causal: false" if said is False else "use_bidirectional_attention: true"
        raise WrongModelError(
            f"{key} is said (in config.json or config_kwargs), but in the model as "
            f"{transformers_version()} loads it a token sees only those before it: the vectors "
            f"would be those of another model. {_older(spec)}"
        )
    line = _lines_without_code(spec)
    if causal and said is None and not spec.trust_remote_code and "is_causal" in line:
        raise WrongModelError(
            "the model's own code is left out (model.trust_remote_code), and in the class of "
            "transformers a token sees only those before it: config.json does not say whether it "
            f"does in that code. {line}; or is_causal: true, if that code looks back only."
        )
    return causal


def _try_tokens(model: Any, spec: ModelSpec) -> tuple[bool | None, int | None]:
    """Return whether a token sees only those before it, and how many positions there are.

    Each is None if it is not known. Nine tokens are encoded twice, the second time with another
    last token: if a token sees only those before it, the vector of the first one stays the same, to
    the last bit. The table of positions is the one in which nine rows in order are looked up.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    rows = (table_rows(model.transformers_model) or 0) if is_plain_text_model(model) else 0
    if rows < 16:
        return None, None
    first = rows // 2 + 4 - torch.arange(9, device=model.device)
    second = first.clone()
    second[-1] += 9
    limits = list[int]()
    seen = list[Any]()

    def looked_up(_: Any, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.embedding.default:
            at = args[1].flatten()
            in_order = at - at[:1] == torch.arange(len(at), device=at.device)
            if int(in_order.sum()) == len(first):
                limits.append(len(args[0]) - int(at[0]))
        return function(*args, **(kwargs or {}))

    mode = type("Lookups", (TorchDispatchMode,), {"__torch_dispatch__": looked_up})
    with torch.inference_mode(), _running_code_of(spec), mode():
        for ids in (first, second):
            given = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
            found = model[0](given).get("token_embeddings")
            if found is None or not found.isfinite().all():
                return None, None
            seen.append(found[0, 0])
    return bool(torch.equal(*seen)), min(limits, default=None)


def describe(model: Any, prompt: str | None, causal: bool | None, notes: Iterable[str]) -> Loaded:
    """Describe what was loaded, for the manifest."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    # A Router's routes may pool in different ways.
    found = [
        module.pooling_mode for module in model.modules() if type(module).__name__ == "Pooling"
    ]
    poolings = dict.fromkeys(
        each if isinstance(each, str) else " + ".join(map(str, each)) for each in found
    )
    ours = hasattr(tokenizer, "padding_side")
    return Loaded(
        modules=tuple(_class_of(module) for module in model),
        pooling=", ".join(poolings),
        causal=causal,
        prompt=prompt or None,
        padding_side=str(tokenizer.padding_side) if ours else "",
        probe_ids=tuple(probe_ids(tokenizer)) if ours else (),
        notes=tuple(notes),
    )


def _class_of(module: Any) -> str:
    """Return such as `Transformer (Qwen2Model)` or `Router (query: Transformer (…), Pooling)`."""
    kind = type(module).__name__
    if kind == "Router":
        routes = (
            f"{name}: {', '.join(map(_class_of, each))}"
            for name, each in module.sub_modules.items()
        )
        return f"{kind} ({'; '.join(routes)})"
    inner = getattr(module, "model", None) if kind == "Transformer" else None
    return f"{kind} ({type(inner).__name__})" if inner is not None else kind


def _folder_of(spec: ModelSpec) -> Path:
    """Return the folder of the model's first module, which has config.json."""
    return first_module(Path(spec.path or spec.name))[1]


def first_module(folder: Path) -> tuple[str, Path]:
    """Return class and folder of the model's first module; a Transformer if there is no list."""
    modules = read_json(folder / "modules.json", list)
    first = modules[0] if modules and isinstance(modules[0], dict) else {}
    kind = str(first.get("type", "Transformer")).rpartition(".")[2]
    return kind, folder / str(first.get("path", ""))


def _some(names: Iterable[str]) -> str:
    first = list(dict.fromkeys(names))
    more = f" and {len(first) - 4} more" if len(first) > 4 else ""
    return ", ".join(first[:4]) + more
