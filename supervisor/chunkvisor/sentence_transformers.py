"""sentence-transformers' own class, whose large calls are runs: one import to change in a script.

    from chunkvisor.sentence_transformers import SentenceTransformer

A call of many texts is encoded by workers, in processes that may crash; a small one is computed
here. This is the only module of the package that imports torch. Its model stays on the CPU, so
the caller's process makes no CUDA context.
"""

import hashlib
import inspect
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
import sentence_transformers as library
import torch
import xxhash
from sentence_transformers.sentence_transformer.modules import Router

from chunkvisor.api import StrPath, encode
from chunkvisor_worker.model import CONSTRUCTOR_KWARGS, LoadLog, use_tokenizers_of_files

_logger = logging.getLogger("chunkvisor")
# Arguments of `encode` that a run takes.
_RUNS_TAKE = {
    "batch_size", "chunk_size", "convert_to_numpy", "convert_to_tensor", "device", "inputs",
    "normalize_embeddings", "output_value", "precision", "prompt", "prompt_name",
    "show_progress_bar", "task", "truncate_dim",
}  # fmt: skip


class SentenceTransformer(library.SentenceTransformer):  # type: ignore[misc]
    """A SentenceTransformer whose `encode` does not lose its work.

    >>> model = SentenceTransformer("all-MiniLM-L6-v2", device="cuda", workdir="cache/vectors")
    >>> vectors = model.encode(texts)

    `bulk_from` texts or more are a run on `device`, kept in a folder below `workdir`: the same
    script continues it. Fewer texts, token embeddings, images, and a model whose weights were
    changed are computed in this process, on the CPU.
    """

    def __init__(
        self,
        model_name_or_path: str | None = None,
        *,
        device: str | list[str] | None = None,
        workdir: StrPath | None = None,
        bulk_from: int = 1000,
        **given: Any,
    ) -> None:
        """Load the model on the CPU; `given` is what the library's class takes.

        `device` is that of the runs: a GPU if there is one. Without a `workdir` nothing is kept.
        Raises what the library raises.
        """
        super().__init__(model_name_or_path, device="cpu", **given)
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._run_device = device
        self._workdir = None if workdir is None else Path(workdir)
        self._bulk_from = bulk_from
        self._said = set[str]()
        self._settings: dict[str, Any] = {}
        self._cannot_run = ""
        if model_name_or_path is None or given.get("modules") is not None:
            self._cannot_run = "the model was put together in this process"
        else:
            self._describe(model_name_or_path, given)
        self._loaded = self._state()

    def _describe(self, name: str, given: Mapping[str, Any]) -> None:
        """Note how a worker builds the same model, and give it the tokenizer that workers take."""
        backbone = getattr(self.transformers_model, "name_or_path", None)
        repository = name
        folder = Path(name)
        if not folder.is_dir():
            if "/" not in name and backbone != name:
                repository = f"{library.__MODEL_HUB_ORGANIZATION__}/{name}"
            found = huggingface_hub.snapshot_download(
                repository,
                revision=given.get("revision"),
                cache_dir=given.get("cache_folder"),
                local_files_only=True,
            )
            folder = Path(found)
        # Workers know neither another cache nor a token.
        is_elsewhere = given.get("cache_folder") or given.get("token")
        kwargs = {key: value for key, value in given.items() if key in CONSTRUCTOR_KWARGS and value}
        loading = dict(kwargs.pop("model_kwargs", None) or {})
        loading.pop("dtype", None)  # that of the weights is handed on
        loading.pop("torch_dtype", None)
        if loading:
            kwargs["model_kwargs"] = loading
        use_tokenizers_of_files(self, folder, kwargs, LoadLog())
        try:
            kwargs = json.loads(json.dumps(kwargs))
        except TypeError as error:
            self._cannot_run = f"an argument of the model cannot be written to a file ({error})"
        weights = next(self.parameters(), None)
        self._settings = {
            "model": str(folder) if is_elsewhere else repository,
            "revision": None if folder == Path(name) or is_elsewhere else given.get("revision"),
            "dtype": "auto" if weights is None else str(weights.dtype).removeprefix("torch."),
            "trust_remote_code": given.get("trust_remote_code") or None,
            "kwargs": kwargs,
        }
        self._length = self.max_seq_length

    def _state(self) -> tuple[Any, ...]:
        """Return what changes when the model is trained, gets an adapter or another module."""
        digest = xxhash.xxh3_64()
        for each in (*self.parameters(), *self.buffers()):
            digest.update(each.detach().cpu().reshape(-1).view(torch.uint8).numpy())
        parts = [(id(each), type(each)) for each in self.modules()]
        return digest.digest(), parts, id(getattr(self, "tokenizer", None))

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        """Return the vectors; arguments are those of the library's class.

        Raises what it and `chunkvisor.encode` raise.
        """
        if "sentences" in kwargs:  # as `inputs` was called before version 5.3
            kwargs["inputs"] = kwargs.pop("sentences")
        given = inspect.signature(super().encode).bind(*args, **kwargs).arguments
        given |= given.pop("kwargs", {})
        if not self.is_singular_input(given["inputs"]):
            texts = given["inputs"] = list(given["inputs"])
            if len(texts) >= self._bulk_from and self._can_run(texts, given):
                return self._run(texts, given)
        given.pop("device", None)  # a run's
        return super().encode(**given)

    def _can_run(self, texts: list[Any], given: Mapping[str, Any]) -> bool:
        """Say whether workers would give the same; if not, the reason is logged once."""
        if given.get("output_value", "sentence_embedding") != "sentence_embedding":
            return False
        if not all(isinstance(text, str) for text in texts):
            return False
        named = given.get("prompt") is None and given.get("prompt_name")
        if named and named not in self.prompts:
            return False  # the library says which there are
        why = self._cannot_run
        others = [
            key for key, value in given.items() if key not in _RUNS_TAKE and value is not None
        ]
        if others:
            why = f"a run does not take {', '.join(others)}"
        elif not why and self._state() != self._loaded:
            why = "the model was changed since it was loaded"
        if why and why not in self._said:
            self._said.add(why)
            _logger.warning("%d texts are encoded in this process: %s", len(texts), why)
        return not why

    def _run(self, texts: list[str], given: Mapping[str, Any]) -> Any:
        """Have workers encode the texts, and return what the library would."""
        name = given.get("prompt_name") or self.default_prompt_name
        prompt = given.get("prompt")
        if prompt is None:
            prompt = self.prompts[name] if name else ""
        asked = {
            **self._settings,
            "prompt": prompt,
            "normalize": bool(given.get("normalize_embeddings")),
            "truncate_dim": given.get("truncate_dim") or self.truncate_dim,
            "max_length": self.max_seq_length if self.max_seq_length != self._length else None,
        }
        if any(isinstance(module, Router) for module in self):
            asked["task"] = given.get("task")
        pace = {key: given[key] for key in ("batch_size", "chunk_size") if given.get(key)}
        digest = hashlib.sha256(json.dumps(asked).encode())
        for text in texts:
            digest.update(json.dumps(text).encode() + b"\n")
        vectors: Any = encode(
            texts,
            **asked,
            **pace,
            device=given.get("device") or self._run_device,
            workdir=self._workdir and self._workdir / digest.hexdigest()[:16],
            progress=given.get("show_progress_bar"),
        )
        precision = given.get("precision")
        if precision and precision != "float32":
            vectors = library.quantize_embeddings(vectors, precision)
        if given.get("convert_to_tensor"):
            return torch.as_tensor(vectors)
        if given.get("convert_to_numpy", True):
            return vectors
        return list(torch.as_tensor(vectors))
