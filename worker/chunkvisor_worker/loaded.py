"""Checks that the model that was loaded is the one that its files describe, and hears what the libraries say meanwhile.

What the files alone show is checked before any worker starts (`chunkvisor.engine.modelchecks`). Here is what only
loading shows: weights that were made up, a token that the tokenizer leaves out, a setting without an effect.
"""

import contextlib
import importlib.metadata
import json
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chunkvisor_worker.contract.messages import Loaded, ModelSpec
from chunkvisor_worker.contract.wire import masked
from chunkvisor_worker.tokenizer_check import no_threads

_PROBE = "A short text."
"""The text whose token ids stand in the manifest."""
_MOST_NOTES = 20
_NOTE_CHARS = 300
"""A note comes with each result of a worker, so it is short."""

_REMOTE = "transformers_modules"
"""The package that transformers makes of code that comes with a model."""

_REPORTED = re.compile(r"^([\w.{}*, -]+?)\s*\|\s*(?:\x1b\[\d+m)?(MISSING|UNEXPECTED|MISMATCH)", re.MULTILINE)
"""A row of the table that transformers 5 logs about weights."""
_NEWLY_MADE = re.compile(r"newly initialized[^\[]*\[([^\]]*)\]")
_NOT_USED = re.compile(r"were not used when initializing[^\[]*\[([^\]]*)\]")
"""The same in the sentences of transformers 4."""
_POOLER = re.compile(r"(^|\.)pooler\.")
"""Weights of a layer that sentence-transformers does not use: it pools by itself."""
_NOT_TRUSTED = "is not trusted, falling back"
"""sentence-transformers' words about a Dense whose activation comes from outside torch."""

_AUTO_CONFIG = frozenset({"attn_implementation", "cache_dir", "code_revision", "dtype", "revision", "torch_dtype"})
"""Keys of `config_kwargs` that steer the loading, and are no attributes of a config."""


class WrongModelError(ValueError):
    """The model that was loaded is not the one that its files describe; the vectors would be finite and wrong."""


class Heard:
    """What the libraries said while a model was loaded."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.made_up: list[str] = []
        """Names of weights that no file has, and that were drawn at random."""
        self.left_over: list[str] = []
        """Names of weights that a file has, and the model has not."""

    def hear(self, text: str) -> None:
        """Take in one message."""
        rows = _REPORTED.findall(text)
        made_up, left_over = _NEWLY_MADE.search(text), _NOT_USED.search(text)
        if rows or made_up or left_over:
            self.made_up += [name for name, state in rows if state != "UNEXPECTED"]
            self.left_over += [name for name, state in rows if state == "UNEXPECTED"]
            self.made_up += _names(made_up)
            self.left_over += _names(left_over)
        else:
            self.note(text)

    def note(self, text: str) -> None:
        """Keep a message, in one line and once."""
        line = " ".join(masked(text[: 10 * _NOTE_CHARS]).split())
        line = line if len(line) <= _NOTE_CHARS else line[: _NOTE_CHARS - 1] + "…"
        if line and line not in self.notes:
            self.notes.append(line)

    def bounded(self) -> tuple[str, ...]:
        """The notes, with the number of those left out at the end."""
        more = len(self.notes) - _MOST_NOTES
        return (*self.notes[:_MOST_NOTES], *([f"{more} more messages of this kind"] if more > 0 else []))


def _names(found: re.Match[str] | None) -> list[str]:
    return re.findall(r"'([^']+)'", found[1]) if found else []


class _Handler(logging.Handler):
    def __init__(self, heard: Heard) -> None:
        super().__init__(logging.WARNING)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._heard.hear(text)
        if not record.name.startswith("transformers"):  # which prints its own
            sys.stderr.write(f"{text}\n")


@contextlib.contextmanager
def hearing(heard: Heard) -> Iterator[None]:
    """Hear Python's warnings and the log records of all libraries, which still get to the log of the worker."""
    from transformers.utils import logging as transformers_logging

    handler = _Handler(heard)
    loggers = [logging.getLogger(), logging.getLogger("transformers")]
    verbosity, show = transformers_logging.get_verbosity(), warnings.showwarning

    def shown(message: Any, category: Any, *others: Any, **named: Any) -> None:
        heard.hear(str(message))
        show(message, category, *others, **named)

    transformers_logging.set_verbosity(min(verbosity, logging.WARNING))
    warnings.showwarning = shown
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        warnings.showwarning = show
        transformers_logging.set_verbosity(verbosity)


@contextlib.contextmanager
def loading_code(spec: ModelSpec) -> Iterator[None]:
    """While code that came with the model may run: what fails in it because of other versions says which to install.

    Memory that nobody fills is filled with NaN meanwhile, so that `check_loaded` sees it: transformers 5 leaves buffers
    that are not saved with the weights empty (`torch.empty_like`), and expects of a model's code that it fills them.
    """
    if not spec.trust_remote_code:
        yield
        return
    import torch

    strict, only_warn = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    except (AttributeError, ImportError, TypeError, KeyError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        if not any(_REMOTE in frame.filename for frame in frames) or _lacks_another_package(error):
            raise
        raise WrongModelError(
            f"the code that comes with the model does not run under transformers {_version()}: {error}. "
            f"{_older(spec)} Or set model.trust_remote_code to false, to take the class of transformers, if it has one "
            "of this type."
        ) from error
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=only_warn)


def _lacks_another_package(error: BaseException) -> bool:
    return isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("transformers")


def _version() -> str:
    return importlib.metadata.version("transformers")


def _older(spec: ModelSpec) -> str:
    """What to install, by the version that the model's own config.json names."""
    saved = str(_json(spec, "config.json").get("transformers_version") or "")
    wanted = "4" if saved.startswith("4.") or not saved else saved.partition(".")[0]
    written = f" (its config.json was written by {saved})" if saved else ""
    return f"Install a version that it was written for{written}: pip install 'transformers<{int(wanted) + 1}'."


def check_loaded(model: Any, spec: ModelSpec, heard: Heard) -> None:
    """Check what only loading shows; `heard` gets notes. Raises WrongModelError."""
    _check_weights(heard)
    if refused := next((note for note in heard.notes if _NOT_TRUSTED in note), None):
        raise WrongModelError(f"{refused} Set model.trust_remote_code to true if you trust it.")
    for transformer in _transformers(model):
        _check_buffers(transformer.model, spec)
        _check_config_kwargs(transformer.model.config, _own(spec, "config_kwargs"))
        if getattr(transformer, "tokenizer", None) is not None:
            _check_pad_token(transformer.tokenizer, transformer.model)
            _check_tokenizer(transformer.tokenizer, spec)


def _check_weights(heard: Heard) -> None:
    made_up = [name for name in dict.fromkeys(heard.made_up) if not _POOLER.search(name)]
    if made_up:
        # A message is cut in the terminal: what to do comes before the other names.
        raise WrongModelError(
            f"weights of the model are in none of its files, and were drawn at random: {_some(sorted(made_up))}. Each "
            "worker would draw others, so equal texts would get different vectors. Download the model again; or choose "
            "a checkpoint that was saved from the class that its config.json names."
            + (f" The files have weights of other names: {_some(sorted(heard.left_over))}." if heard.left_over else "")
        )
    if heard.left_over:
        heard.note(f"weights that the files have and the model does not use: {_some(heard.left_over)}")


def _check_buffers(transformer: Any, spec: ModelSpec) -> None:
    """A buffer that is not saved with the weights, and that neither transformers nor the model's code has filled."""
    if not spec.trust_remote_code:
        return
    import torch

    empty = []
    for prefix, module in transformer.named_modules():
        for name in getattr(module, "_non_persistent_buffers_set", ()):
            buffer: Any = getattr(module, name, None)
            if not torch.is_tensor(buffer) or not buffer.numel() or buffer.dtype == torch.bool:
                continue
            unset = buffer.isnan() if buffer.is_floating_point() else buffer == torch.iinfo(buffer.dtype).max
            if bool(unset.any()):
                empty.append(f"{prefix}.{name}".lstrip("."))
    if empty:
        raise WrongModelError(
            f"the code that comes with the model has buffers that transformers {_version()} leaves empty: "
            f"{_some(empty)}. They would hold whatever was in memory, and the vectors would be NaN, or finite and "
            f"wrong. {_older(spec)}"
        )


def _check_config_kwargs(config: Any, asked: Mapping[str, Any]) -> None:
    for key, value in asked.items():
        if key in _AUTO_CONFIG:
            continue
        found = getattr(config, key, None)
        plain = isinstance(value, bool | int | float | str)
        if found is None or (plain and found != value):
            raise WrongModelError(
                f"model.kwargs has config_kwargs: {{{key}: {json.dumps(value)}}}, which has no effect on this model: "
                f"{type(config).__name__} of transformers {_version()} has no such setting. Without an effect the "
                f"vectors would be those of the model as it stands. Leave it out; or copy the model's folder, write "
                f'"{key}": {json.dumps(value)} into its config.json, and give that folder as model.name.'
            )


def _check_pad_token(tokenizer: Any, transformer: Any) -> None:
    from chunkvisor_worker.model import table_rows

    if getattr(tokenizer, "pad_token", "") is None:
        token = getattr(tokenizer, "eos_token", None) or "TOKEN"
        raise WrongModelError(
            "the tokenizer has no pad token: two texts of different lengths could not be encoded in one batch. Name "
            f"one, as the model's author did: model.kwargs: {{processor_kwargs: {{pad_token: {json.dumps(token)}}}}}."
        )
    rows, pad_id = table_rows(transformer), getattr(tokenizer, "pad_token_id", None)
    if rows and isinstance(pad_id, int) and pad_id >= rows:
        raise WrongModelError(
            f"the tokenizer's pad token {tokenizer.pad_token} has the id {pad_id}, but the model's embedding table has "
            f"{rows} rows: a batch of two texts would fail, on a GPU by a device-side assert. tokenizer_config.json "
            "names no pad token, or another model's. Name the one that the model's author used: "
            "model.kwargs: {processor_kwargs: {pad_token: TOKEN}}."
        )


def _check_tokenizer(tokenizer: Any, spec: ModelSpec) -> None:
    given = _own(spec, "processor_kwargs")
    saved = _json(spec, "tokenizer_config.json") | given
    ids: list[int] | None = None
    for key, kind, place in (("add_bos_token", "bos", 0), ("add_eos_token", "eos", -1)):
        token_id = getattr(tokenizer, f"{kind}_token_id", None)
        if saved.get(key) is not True or token_id is None:
            continue
        ids = _ids(tokenizer) if ids is None else ids
        if ids and ids[place] != token_id:
            token = getattr(tokenizer, f"{kind}_token", "")
            at = "last" if kind == "eos" else "first"
            remedy = f"Add to the config: model: {{kwargs: {{processor_kwargs: {{{key}: true}}}}}}"
            if key in given:
                remedy = (
                    f"{type(tokenizer).__name__} cannot, though processor_kwargs asks for it. Copy the model's folder, "
                )
                remedy += f"add {token} to the post_processor of its tokenizer.json, and set {key} to true"
            raise WrongModelError(
                f'tokenizer_config.json says "{key}": true, but the tokenizer of transformers {_version()} does not '
                f"put {token} {at}: the model would read another text than it was trained with. {remedy} (or false, if "
                "the vectors that you compare with were made without it)."
            )


def check_attention(model: Any, spec: ModelSpec) -> bool | None:
    """Whether a token sees only those before it, found by trying; None if it cannot be told.

    Raises WrongModelError if the model's files or the config ask for the other.
    """
    causal = _is_causal(model, spec)
    config = getattr(model.transformers_model, "config", None)
    saved = _json(spec, "config.json")
    if causal and (saved.get("is_causal") is False or getattr(config, "use_bidirectional_attention", None) is True):
        key = '"is_causal": false' if saved.get("is_causal") is False else '"use_bidirectional_attention": true'
        raise WrongModelError(
            f"config.json says {key}, but in the model as transformers {_version()} loads it a token sees only those "
            f"before it: the vectors would be those of another model. {_older(spec)}"
            + ("" if spec.trust_remote_code else " Then set model.trust_remote_code to true: its attention is its own.")
        )
    return causal


def _is_causal(model: Any, spec: ModelSpec) -> bool | None:
    """Whether the first token's vector stays the same, to the last bit, if the last token is another."""
    import torch

    from chunkvisor_worker.model import is_plain_text_model, table_rows
    from chunkvisor_worker.tokenized import flatten, is_flattened

    if not is_plain_text_model(model):
        return None
    rows = table_rows(model.transformers_model) or 0
    if rows < 16:
        return None
    first = torch.arange(rows // 2 - 4, rows // 2 + 4, device=model.device)[None]
    second = first.clone()
    second[0, -1] = rows // 2 - 6
    seen = []
    with torch.inference_mode(), loading_code(spec):
        for ids in (first, second):
            features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            if is_flattened(model):
                flat = flatten(model, [{"input_ids": ids[0].cpu().numpy()}])
                features = {
                    key: value.to(model.device) if torch.is_tensor(value) else value for key, value in flat.items()
                }
            found = model[0](features).get("token_embeddings")
            if found is None or not bool(found.isfinite().all()):
                return None
            seen.append(found.flatten(end_dim=-2)[0])
    return bool(torch.equal(*seen))


def describe(model: Any, prompt: str | None, causal: bool | None, notes: tuple[str, ...]) -> Loaded:
    """What was loaded, for the manifest."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    # All that there are: a Router's routes may have different ones.
    found = [module.pooling_mode for module in model.modules() if type(module).__name__ == "Pooling"]
    poolings = dict.fromkeys(each if isinstance(each, str) else " + ".join(map(str, each)) for each in found)
    ours = hasattr(tokenizer, "padding_side")
    return Loaded(
        modules=tuple(_class_of(module) for module in model),
        pooling=", ".join(poolings),
        causal=causal,
        prompt=prompt or None,
        padding_side=str(tokenizer.padding_side) if ours else "",
        probe_ids=tuple(_ids(tokenizer)) if ours else (),
        notes=notes,
    )


def _class_of(module: Any) -> str:
    """Such as `Transformer (Qwen2Model)`, or `Router (query: Transformer (BertModel), Pooling)` with all its routes."""
    kind = type(module).__name__
    if kind == "Router":
        routes = (f"{name}: {', '.join(map(_class_of, each))}" for name, each in module.sub_modules.items())
        return f"{kind} ({'; '.join(routes)})"
    inner = getattr(module, "model", None) if kind == "Transformer" else None
    return f"{kind} ({type(inner).__name__})" if inner is not None else kind


def _transformers(model: Any) -> Iterator[Any]:
    """The modules that hold a model of transformers, those of a Router's routes among them."""
    for module in model.modules():
        if type(module).__name__ == "Transformer" and hasattr(getattr(module, "model", None), "config"):
            yield module


def _ids(tokenizer: Any) -> list[int]:
    with no_threads():
        return [int(each) for each in tokenizer(_PROBE)["input_ids"]]


def _own(spec: ModelSpec, name: str) -> dict[str, Any]:
    """A mapping of `model.kwargs` that is the library's own, by its name of today or of before."""
    old = {"processor_kwargs": "tokenizer_kwargs"}.get(name, name)
    return {**(spec.kwargs.get(old) or {}), **(spec.kwargs.get(name) or {})}


def _json(spec: ModelSpec, name: str) -> dict[str, Any]:
    """A JSON file of the first module's folder; empty if there is none."""
    folder = Path(spec.path or spec.name)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        folder /= json.loads((folder / "modules.json").read_bytes())[0]["path"]
    try:
        found = json.loads((folder / name).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _some(names: Iterable[str]) -> str:
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
