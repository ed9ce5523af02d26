"""Checks that the model that was loaded is the one that its files describe, and hears what the libraries say meanwhile.

What the files alone show is checked before any worker starts (`chunkvisor.engine.modelchecks`). Here is what only
loading shows: weights that were made up, a tokenizer of another model, a setting without an effect.
"""

import contextlib
import importlib.metadata
import json
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chunkvisor_worker.contract.messages import Loaded, ModelSpec
from chunkvisor_worker.contract.wire import masked

_PROBE = "A short text."
"""The text whose token ids stand in the manifest."""
_MOST_NOTES, _NOTE_CHARS = 20, 300
"""Notes come with each result of a worker, so they are short."""
_REPORTED = re.compile(r"^([\w.{}*, -]+?)\s*\|\s*(?:\x1b\[\d+m)?(MISSING|UNEXPECTED|MISMATCH)", re.MULTILINE)
"""A row of the table that transformers 5 logs about weights."""
_NEWLY_MADE = re.compile(r"newly initialized[^\[]*\[([^\]]*)\]")
_NOT_USED = re.compile(r"were not used when initializing[^\[]*\[([^\]]*)\]")
"""The same in the sentences of transformers 4."""
_POOLER = re.compile(r"(^|\.)pooler\.")
"""Weights of a layer that sentence-transformers does not use: it pools by itself."""
_AUTO_CONFIG = frozenset({"attn_implementation", "cache_dir", "code_revision", "dtype", "revision", "torch_dtype"})
"""Keys of `config_kwargs` that steer the loading, and are not attributes of a config."""
_SAMPLES = (
    "The quick brown fox jumps over the lazy dog.",
    "Москва является столицей России.",
    "床前明月光",
    "吾輩は猫である。",
    "모든 인간은 태어날 때부터 자유롭다.",
    "يولد جميع الناس أحرارا متساوين.",
)
"""A tokenizer of any language knows the words of one of these; one without its vocabulary knows none."""


class WrongModelError(ValueError):
    """The model that was loaded is not the one that its files describe; the vectors would be finite and wrong."""


class TokenizerMismatchError(ValueError):
    """The tokenizer and the weights are not of the same model; the vectors would be finite and wrong."""


class Heard(logging.Handler):
    """What the libraries said while a model was loaded."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.notes: list[str] = []
        self.made_up: list[str] = []
        """Names of weights that no file has, and that were drawn at random."""
        self.left_over: list[str] = []
        """Names of weights that a file has and the model does not use."""

    def emit(self, record: logging.LogRecord) -> None:
        """Take in a log record."""
        self.hear(record.getMessage())
        if not record.name.startswith("transformers"):  # which prints its own
            sys.stderr.write(f"{record.getMessage()}\n")

    def hear(self, text: str) -> None:
        """Take in one message."""
        rows = _REPORTED.findall(text)
        made_up = [name for name, state in rows if state != "UNEXPECTED"]
        left_over = [name for name, state in rows if state == "UNEXPECTED"]
        for found, names in ((_NEWLY_MADE.search(text), made_up), (_NOT_USED.search(text), left_over)):
            names += re.findall(r"'([^']+)'", found[1]) if found else []
        self.made_up += made_up
        self.left_over += left_over
        if not made_up and not left_over:
            self.note(text)

    def note(self, text: str) -> None:
        """Keep a message, in one line and once."""
        line = " ".join(masked(text[: 10 * _NOTE_CHARS]).split())
        line = line if len(line) <= _NOTE_CHARS else line[: _NOTE_CHARS - 1] + "…"
        if line and line not in self.notes:
            self.notes.append(line)

    def bounded(self) -> tuple[str, ...]:
        """Return the notes, with the number of those left out at the end."""
        more = len(self.notes) - _MOST_NOTES
        return (*self.notes[:_MOST_NOTES], *([f"{more} more messages of this kind"] if more > 0 else []))


@contextlib.contextmanager
def hearing(heard: Heard) -> Iterator[None]:
    """Hear Python's warnings and the log records of all libraries, which still get to the log of the worker."""
    from transformers.utils import logging as transformers_logging

    verbosity, show = transformers_logging.get_verbosity(), warnings.showwarning
    loggers = [logging.getLogger(), logging.getLogger("transformers")]

    def shown(message: Any, category: Any, *others: Any, **named: Any) -> None:
        heard.hear(str(message))
        show(message, category, *others, **named)

    transformers_logging.set_verbosity(min(verbosity, logging.WARNING))
    warnings.showwarning = shown
    for logger in loggers:
        logger.addHandler(heard)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(heard)
        warnings.showwarning = show
        transformers_logging.set_verbosity(verbosity)


@contextlib.contextmanager
def loading_code(spec: ModelSpec) -> Iterator[None]:
    """Run code that came with the model: what fails in it because of other versions says which to install.

    Memory that nothing fills is filled with NaN meanwhile, so that `check_loaded` sees it: transformers 5 leaves
    buffers that are not saved with the weights empty, and expects a model's code to fill them.
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
        # transformers makes a package of that name of a model's code.
        own = any("transformers_modules" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
        if not own or (isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("transformers")):
            raise
        raise WrongModelError(
            f"the code that comes with the model does not run under transformers {_version()}: {error}. {_older(spec)} "
            "Or set model.trust_remote_code to false, to take the class of transformers, if it has one of this type."
        ) from error
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=only_warn)


def _version() -> str:
    return importlib.metadata.version("transformers")


def _older(spec: ModelSpec) -> str:
    """Say what to install, by the version that the model's own config.json names."""
    saved = str(_json(spec, "config.json").get("transformers_version") or "")
    wanted = int(saved.partition(".")[0]) if saved[:1].isdigit() else 4
    written = f" (its config.json was written by {saved})" if saved else ""
    return f"Install a version that it was written for{written}: pip install 'transformers<{wanted + 1}'."


def check_loaded(model: Any, spec: ModelSpec, heard: Heard) -> None:
    """Check what only loading shows; `heard` gets notes. Raises WrongModelError."""
    _check_weights(heard)
    if refused := next((note for note in heard.notes if "is not trusted, falling back" in note), None):
        raise WrongModelError(f"{refused} Set model.trust_remote_code to true if you trust it.")
    for module in model.modules():  # those of a Router's routes among them
        if type(module).__name__ == "Transformer" and hasattr(getattr(module, "model", None), "config"):
            _check_buffers(module.model, spec)
            _check_config_kwargs(module.model.config, _own(spec, "config_kwargs"))
            if getattr(module, "tokenizer", None) is not None:
                _check_pad_token(module.tokenizer, module.model)
                _check_added_tokens(module.tokenizer, spec)


def _check_weights(heard: Heard) -> None:
    made_up = [name for name in heard.made_up if not _POOLER.search(name)]
    if made_up:
        # A message is cut in the terminal: what to do comes before the other names.
        others = f" The files have weights of other names: {_some(sorted(heard.left_over))}." if heard.left_over else ""
        raise WrongModelError(
            f"weights of the model are in none of its files, and were drawn at random: {_some(sorted(made_up))}. "
            "Download the model again; or choose a checkpoint that was saved from the class that its config.json "
            f"names.{others}"
        )
    if heard.left_over:
        heard.note(f"weights that the files have and the model does not use: {_some(heard.left_over)}")


def _check_buffers(transformer: Any, spec: ModelSpec) -> None:
    """Refuse a buffer that is not saved with the weights, and that neither transformers nor the model's code fills."""
    import torch

    empty = []
    for prefix, module in transformer.named_modules() if spec.trust_remote_code else ():
        for name in getattr(module, "_non_persistent_buffers_set", ()):
            buffer: Any = getattr(module, name, None)
            if torch.is_tensor(buffer) and buffer.numel() and buffer.dtype != torch.bool:
                floats = buffer.is_floating_point()
                unset = buffer.isnan() if floats else buffer == torch.iinfo(buffer.dtype).max
                empty += [f"{prefix}.{name}".lstrip(".")] if bool(unset.any()) else []
    if empty:
        raise WrongModelError(
            f"the code that comes with the model has buffers that transformers {_version()} leaves empty: "
            f"{_some(empty)}. The vectors would be NaN, or finite and wrong. {_older(spec)}"
        )


def _check_config_kwargs(config: Any, asked: Mapping[str, Any]) -> None:
    for key, value in asked.items():
        found, wanted = getattr(config, key, None), json.dumps(value)
        differs = isinstance(value, bool | int | float | str) and found != value
        if key not in _AUTO_CONFIG and (found is None or differs):
            raise WrongModelError(
                f"model.kwargs has config_kwargs: {{{key}: {wanted}}}, which has no effect on this model: "
                f"{type(config).__name__} of transformers {_version()} has no such setting. Leave it out; or copy the "
                f'model\'s folder, write "{key}": {wanted} into its config.json, and give that folder as model.name.'
            )


def _check_pad_token(tokenizer: Any, transformer: Any) -> None:
    from chunkvisor_worker.model import table_rows

    if getattr(tokenizer, "pad_token", "") is None:
        token = json.dumps(getattr(tokenizer, "eos_token", None) or "TOKEN")
        raise WrongModelError(
            "the tokenizer has no pad token: two texts of different lengths could not be encoded in one batch. Name "
            f"one, as the model's author did: model.kwargs: {{processor_kwargs: {{pad_token: {token}}}}}."
        )
    rows, pad_id = table_rows(transformer), getattr(tokenizer, "pad_token_id", None)
    if rows and isinstance(pad_id, int) and pad_id >= rows:
        raise WrongModelError(
            f"the tokenizer's pad token {tokenizer.pad_token} has the id {pad_id}, but the model's embedding table has "
            f"{rows} rows: a batch of two texts would fail, on a GPU by a device-side assert. Name the one that the "
            "model's author used: model.kwargs: {processor_kwargs: {pad_token: TOKEN}}."
        )


def _check_added_tokens(tokenizer: Any, spec: ModelSpec) -> None:
    given = _own(spec, "processor_kwargs")
    saved = _json(spec, "tokenizer_config.json") | given
    for key, kind, place in (("add_bos_token", "bos", 0), ("add_eos_token", "eos", -1)):
        token_id = getattr(tokenizer, f"{kind}_token_id", None)
        ids = _ids(tokenizer) if saved.get(key) is True and token_id is not None else []
        if not ids or ids[place] == token_id:
            continue
        token, at = getattr(tokenizer, f"{kind}_token", ""), "last" if kind == "eos" else "first"
        remedy = f"Add to the config: model: {{kwargs: {{processor_kwargs: {{{key}: true}}}}}}"
        if key in given:
            remedy = f"{type(tokenizer).__name__} cannot, though processor_kwargs asks for it. Copy the folder, "
            remedy += f"add {token} to the post_processor of its tokenizer.json, and set {key} to true"
        raise WrongModelError(
            f'tokenizer_config.json says "{key}": true, but the tokenizer of transformers {_version()} does not put '
            f"{token} {at}: the model would read another text than it was trained with. {remedy} (or false, if the "
            "vectors that you compare with were made without it)."
        )


def check_attention(model: Any, spec: ModelSpec) -> bool | None:
    """Try whether a token sees only those before it; None if it cannot be told.

    Raises WrongModelError if the model's files or the config ask for the other.
    """
    causal, saved = _is_causal(model, spec), _json(spec, "config.json")
    both_ways = getattr(getattr(model.transformers_model, "config", None), "use_bidirectional_attention", None)
    if causal and (saved.get("is_causal") is False or both_ways is True):
        key = '"is_causal": false' if saved.get("is_causal") is False else '"use_bidirectional_attention": true'
        then = "" if spec.trust_remote_code else " Then set model.trust_remote_code to true, for its own attention."
        raise WrongModelError(
            f"config.json says {key}, but in the model as transformers {_version()} loads it a token sees only those "
            f"before it: the vectors would be those of another model. {_older(spec)}{then}"
        )
    return causal


def _is_causal(model: Any, spec: ModelSpec) -> bool | None:
    """Try whether the first token's vector stays the same, to the last bit, if the last token is another."""
    import torch

    from chunkvisor_worker.model import is_plain_text_model, table_rows
    from chunkvisor_worker.tokenized import flatten, is_flattened

    rows = (table_rows(model.transformers_model) or 0) if is_plain_text_model(model) else 0
    if rows < 16:
        return None
    first = torch.arange(rows // 2 - 4, rows // 2 + 4, device=model.device)[None]
    second = first.clone()
    second[0, -1] = rows // 2 - 6
    seen = []
    with torch.inference_mode(), loading_code(spec):
        for ids in (first, second):
            features: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            if is_flattened(model):
                flat = flatten(model, [{"input_ids": ids[0].cpu().numpy()}])
                features = {key: each.to(model.device) if torch.is_tensor(each) else each for key, each in flat.items()}
            found = model[0](features).get("token_embeddings")
            if found is None or not bool(found.isfinite().all()):
                return None
            seen.append(found.flatten(end_dim=-2)[0])
    return bool(torch.equal(*seen))


def describe(model: Any, prompt: str | None, causal: bool | None, notes: tuple[str, ...]) -> Loaded:
    """Describe what was loaded, for the manifest."""
    tokenizer: Any = getattr(model, "tokenizer", None)
    # A Router's routes may pool in different ways.
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
    """Return such as `Transformer (Qwen2Model)`, or `Router (query: Transformer (BertModel), Pooling)`."""
    kind = type(module).__name__
    if kind == "Router":
        routes = (f"{name}: {', '.join(map(_class_of, each))}" for name, each in module.sub_modules.items())
        return f"{kind} ({'; '.join(routes)})"
    inner = getattr(module, "model", None) if kind == "Transformer" else None
    return f"{kind} ({type(inner).__name__})" if inner is not None else kind


def _ids(tokenizer: Any) -> list[int]:
    with _no_threads():
        return [int(each) for each in tokenizer(_PROBE)["input_ids"]]


def _own(spec: ModelSpec, name: str) -> dict[str, Any]:
    """Return a mapping of `model.kwargs` that is the library's own, by its name of today or of before."""
    old = {"processor_kwargs": "tokenizer_kwargs"}.get(name, name)
    return {**(spec.kwargs.get(old) or {}), **(spec.kwargs.get(name) or {})}


def _json(spec: ModelSpec, name: str) -> dict[str, Any]:
    """Read a JSON file of the first module's folder; empty if there is none."""
    folder = Path(spec.path or spec.name)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        folder /= json.loads((folder / "modules.json").read_bytes())[0]["path"]
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((folder / name).read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


def _some(names: Iterable[str]) -> str:
    first = list(dict.fromkeys(names))
    return ", ".join(first[:4]) + (f" and {len(first) - 4} more" if len(first) > 4 else "")


def check_tokenizer(tokenizer: Any, table_rows: int | None) -> None:
    """Refuse a tokenizer that cannot be the one the model was trained with. Raises TokenizerMismatchError.

    If a model folder lacks tokenizer.json and vocab.txt, transformers (seen with 5.23) builds a tokenizer of the five
    special tokens and says nothing: all texts of n words then get the same vector. `table_rows` are those of the
    embedding table (None = not known). Tables are padded by a few percent at most, and may lack a few tokens, which no
    text yields (EmbeddingGemma's image token).
    """
    known, table = len(tokenizer), f"the model's embedding table has {table_rows} rows"
    if table_rows and known < 0.5 * table_rows:
        raise TokenizerMismatchError(
            f"the tokenizer knows {known} tokens, but {table}: most words would be unknown. Tokenizer files "
            "(tokenizer.json, vocab.txt, ...) are probably missing from its folder."
        )
    if table_rows and known > 1.01 * table_rows:
        raise TokenizerMismatchError(
            f"the tokenizer knows {known} tokens, but {table}: the tokenizer files belong to another model."
        )
    with _no_threads():
        samples = [tokenizer.tokenize(sample) for sample in _SAMPLES]
    if all(2 * tokens.count(tokenizer.unk_token) >= max(1, len(tokens)) for tokens in samples):
        raise TokenizerMismatchError(
            f"the tokenizer ({type(tokenizer).__name__}, {known} tokens) knows the words of no language: "
            f"{_SAMPLES[0]!r} is unknown to it. Its vocabulary is damaged or missing."
        )


def check_ids(largest_id: int, table_rows: int | None) -> None:
    """Refuse a token id outside the embedding table; on a GPU it would be a device-side assert, which names no cause.

    Raises TokenizerMismatchError.
    """
    if table_rows and largest_id >= table_rows:
        raise TokenizerMismatchError(
            f"the tokenizer gave token id {largest_id}, but the model's embedding table has only {table_rows} rows: "
            "the tokenizer has tokens the model was not trained with."
        )


@contextlib.contextmanager
def _no_threads() -> Iterator[None]:
    """Keep tokenizers from starting its thread pool, which would not survive a fork of the process that has loaded."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
