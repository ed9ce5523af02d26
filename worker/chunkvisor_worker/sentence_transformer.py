"""Encodes a chunk with a sentence-transformers model.

The vectors are those that `SentenceTransformer.encode` gives for the same texts, up to the rounding
that comes with another batch. Without the GPU that is asked for it fails: it never falls back to
the CPU.
"""

import copy
import gc
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from chunkvisor_worker import batching, cpu
from chunkvisor_worker.batching import NONE_CUT, Indices, Vectors, padded_tokens
from chunkvisor_worker.contract.correctness import allowed_difference, config_line
from chunkvisor_worker.contract.messages import EncodeSpec, Facts, Limits, ModelSpec, Phase
from chunkvisor_worker.cpu import Lanes
from chunkvisor_worker.liveness import BeatWriter
from chunkvisor_worker.model import (
    LoadLog,
    check_attention,
    chosen_prompt,
    describe,
    is_placed_by_loading,
    is_plain_text_model,
    load_model,
    max_length,
    table_rows,
    use_hub,
)
from chunkvisor_worker.plugin import BadOutputError
from chunkvisor_worker.tokenizer import WrongModelError

# What torch may still hold (workspaces of cuBLAS) when the GPU counts as free for the next worker.
_LEFT_BYTES = 256 << 20
_PROBE = "A short text."
_SLICE = 256  # texts tokenized at once: each token takes 36 bytes meanwhile


def _cut_tokens(features: Any) -> list[tuple[int, int]] | None:
    """Return (position, tokens before the cut) of each text that a tokenizer in Rust has cut.

    None for a tokenizer in Python, which does not say.
    """
    encodings = getattr(features, "encodings", None)
    if encodings is None:
        return None
    longest = max(map(len, encodings), default=0)
    found = []
    for at, each in enumerate(encodings):
        # `overflowing` takes time to read, and only the longest can be cut.
        rest = each.overflowing if len(each) == longest else ()
        if rest:
            more = sum(len(part) - sum(part.special_tokens_mask) for part in rest)
            found.append((at, len(each) + more))
    return found


def padded(rows: Sequence[dict[str, Indices]], tokenizer: Any) -> dict[str, Indices]:
    """Pad the rows to the longest, as `tokenizer.pad` does, which takes 80 % of the host's time."""
    sizes = np.array([len(row["input_ids"]) for row in rows])[:, None]
    longest = sizes.max()
    columns = np.arange(longest)
    held = columns < sizes if tokenizer.padding_side == "right" else columns >= longest - sizes
    fills = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    batch = {}
    for key in rows[0]:
        batch[key] = np.full(held.shape, fills.get(key, 0), dtype=np.int64)
        batch[key][held] = np.concatenate([row[key] for row in rows])
    return batch


class PinnedBuffers:
    """Pinned host memory through which a batch goes to the device and its vectors come back.

    It is never freed: torch records an event in the destructor of a pinned tensor, where the error
    of a lost context cannot be raised and ends the process by abort (CachingHostAllocator;
    pytorch#84756). Two batches take turns: before the third uses the buffers of the first, the
    vectors of the first have been waited for.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, str], Any] = {}
        self._outgrown: list[Any] = []
        self.turn = 0  # 0 or 1: the set of buffers for the batch that begins next

    def to_device(self, name: str, tensor: Any, device: Any) -> Any:
        """Return the tensor on the device, copied while another batch is computed."""
        if device.type == "cpu":
            return tensor.to(device)
        return self._like(name, tensor).copy_(tensor).to(device, non_blocking=True)

    def begin_copy(self, vectors: Any) -> Callable[[], Vectors]:
        """Begin to copy the vectors to host memory; return a function that waits for the copy."""
        if vectors.device.type == "cpu":
            return lambda: vectors.numpy()
        import torch

        copy = self._like("vectors", vectors).copy_(vectors, non_blocking=True)
        done = torch.cuda.Event()
        done.record()

        def wait() -> Vectors:
            done.synchronize()
            array: Vectors = copy.numpy().copy()
            return array

        return wait

    def _like(self, name: str, tensor: Any) -> Any:
        """Return pinned memory of the tensor's shape and type, from a buffer that grows."""
        import torch

        key = self.turn, name
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < tensor.numel() or buffer.dtype != tensor.dtype:
            if buffer is not None:
                self._outgrown.append(buffer)
            capacity = 1 << max(0, tensor.numel() - 1).bit_length()
            buffer = self._buffers[key] = torch.empty(capacity, dtype=tensor.dtype, pin_memory=True)
        return buffer[: tensor.numel()].view(tensor.shape)


def repeat_keys_without_fused_kernel(dtype: Any) -> None:
    """Have keys and values of grouped queries repeated if no fused kernel takes them as they are.

    The flash and cuDNN kernels need half precision and Ampere. Otherwise sdpa would take the math
    kernel, with all scores in memory: 48 GiB for one text of 32k tokens (Qwen2-1.5B).
    """
    import torch
    from transformers.integrations import sdpa_attention

    half = dtype in (torch.float16, torch.bfloat16)
    if not half or torch.cuda.get_device_capability() < (8, 0):
        sdpa_attention.use_gqa_in_sdpa = lambda *_given: False


class SentenceTransformerEncoder:
    """A sentence-transformers model as an encoder (see `chunkvisor_worker.job`).

    A plain text model is tokenized once, ahead of the device, and forwarded in batches of like
    token length. Any other goes batch by batch through the library's own `encode`, with tokens
    estimated from bytes.
    """

    def __init__(self, model: ModelSpec, device: str) -> None:
        self._spec = model
        self.encode_spec = EncodeSpec()
        self._device = device
        self._model: Any = None
        self._prompt: str | None = None
        self._load_log = LoadLog()
        self._causal: bool | None = None
        self._truncate_dim: int | None = None  # that was saved with the model
        self._texts: list[str] = []
        # Of each text what the tokenizer gives, unpadded int64 of shape (tokens,). None if tokens
        # are estimated.
        self._rows: list[dict[str, Indices]] | None = None
        # what the model's preprocessing returns next to the rows, the same for all texts
        self._extras: dict[str, Any] = {}
        self._cut: Indices | None = None  # as `texts_cut` has it; None = the tokenizer does not say
        self._lengths: Indices = np.zeros(0, dtype=np.int64)
        self._dimension = 0
        self._linear = ""
        self._padding_checked = False
        # weights without the embeddings: each token is multiplied with each. 0 = not a plain text
        # model
        self._weight_count = 0
        self._pinned = PinnedBuffers()
        self._is_padded: bool | None = None  # the batch that is forwarded; None = not known
        self._flat = False  # whether the texts of a batch lie end to end, without padding

    @property
    def _task(self) -> dict[str, str]:
        """Return the library's argument `task`, if one is asked for."""
        return {} if self.encode_spec.task is None else {"task": self.encode_spec.task}

    def load(self, progress: BeatWriter) -> None:
        """Import torch and sentence-transformers and load the weights to host memory.

        A quantized model or one with a device map is loaded by `start` if the device is a GPU.
        Weights that are there already are kept. Raises whatever the libraries raise.
        """
        progress.phase(Phase.IMPORT)
        # Without garbage collection, which would take 0.8 of the 6 s of the imports: none of their
        # 400,000 objects can be freed.
        gc.disable()
        use_hub(self._spec)
        import huggingface_hub.utils
        import sentence_transformers  # noqa: F401 - the import is the work of this phase
        import transformers

        gc.freeze()
        gc.enable()
        transformers.utils.logging.disable_progress_bar()
        huggingface_hub.utils.disable_progress_bars()
        if self._device == "cpu" or not is_placed_by_loading(self._spec):
            self._load("cpu", progress)

    def tokenize(self, texts: list[str], progress: BeatWriter) -> None:
        """Turn the texts into token ids. Raises TypeError for half of a surrogate pair."""
        self._texts = texts
        if self._model is not None:
            progress.phase(Phase.TOKENIZE)
            self._tokenize(progress)

    def start(self, progress: BeatWriter) -> None:
        """Move the model to the device. Raises torch's own error if there is no GPU to be had."""
        if self._device != "cpu":
            import torch

            progress.phase(Phase.CUDA_INIT)
            # An allocation says why there is no GPU; is_available() only says that there is none.
            torch.zeros(1, device=self._device)
        if self._model is None:
            self._load(self._device, progress)
            progress.phase(Phase.TOKENIZE)
            self._tokenize(progress)
        elif self._device != "cpu":
            progress.phase(Phase.WEIGHTS_COPY)
            self._model.to(self._device)
        if self._device != "cpu":
            repeat_keys_without_fused_kernel(self._model.dtype)
            self._make_masks_without_waiting()
            self._causal = check_attention(self._model, self._spec)

    def _make_masks_without_waiting(self) -> None:
        """Make the mask for sdpa from what the host knows of the padding.

        transformers would ask the device whether there is any, and so wait for earlier batches.
        """
        try:
            from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
        except ImportError:  # of transformers before 4.53
            return

        def mask(*given: Any, attention_mask: Any = None, **named: Any) -> Any:
            if self._is_padded:
                named |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
            return sdpa_mask(
                *given, attention_mask=None if self._is_padded is False else attention_mask, **named
            )

        AttentionMaskInterface.register("sdpa", mask)

    def texts_cut(self) -> Indices:
        """Return texts of more tokens than the model reads; none if the tokenizer does not say."""
        return NONE_CUT if self._cut is None else self._cut

    def encode(self, limits: Limits, progress: BeatWriter) -> Iterator[tuple[Indices, Vectors]]:
        """Yield vectors of all texts, longest first.

        On a GPU a batch is padded and copied while the one before it is computed. On a CPU there
        may be several `lanes`. Raises BadOutputError for an output that is not one vector a text;
        if batches have several texts, WrongModelError for a model whose vectors depend on the
        padding.
        """
        if limits.rows > 1 and not self._padding_checked:
            self._check_padding(progress)
            self._padding_checked = True
        counted = self._rows is not None
        lanes = Lanes(ahead=1)
        batches: Iterable[Indices]
        if limits.measured and counted and self._device != "cpu":
            import torch

            batches = batching.measured_batches(
                self._lengths, limits, batching.gpu_needs(torch), flat=self._flat
            )
        else:
            batches = batching.batches_of(self._lengths, limits, flat=self._flat)
            lanes = self._lanes(batches) if self._device == "cpu" else lanes

        def begins(indices: Indices) -> bool:
            if progress.leaving:
                return False
            progress.batch(indices, self._padded_tokens(indices))
            self._pinned.turn = 1 - self._pinned.turn
            return True

        def start(indices: Indices) -> Callable[[], Vectors]:
            if self._device == "cpu":
                return self._forward(indices)
            import torch

            # torch's allocator counts on the host, without waiting for the device.
            torch.cuda.reset_peak_memory_stats()
            try:
                return self._forward(indices)
            finally:
                progress.note_gpu_memory(torch.cuda.memory_stats(), self._padded_tokens(indices))

        for indices, vectors in lanes.compute(batches, begins, start):
            if vectors.ndim != 2 or len(vectors) != len(indices):
                raise BadOutputError(
                    f"the model returned shape {vectors.shape} for {len(indices)} texts"
                )
            self._dimension = vectors.shape[1]
            tokens = int(self._lengths[indices].sum()) if counted else 0
            progress.advance(len(indices), tokens, self._padded_tokens(indices))
            yield indices, vectors

    def _padded_tokens(self, indices: Indices) -> int:
        """Count the tokens of a batch with its padding, 0 if they are not counted."""
        if self._rows is None:
            return 0
        return padded_tokens(self._lengths, indices, flat=self._flat)

    def _check_padding(self, progress: BeatWriter) -> None:
        """Refuse a model whose vectors depend on the padding, beyond rounding."""
        # `mask` reads this attribute, not that of the copy, and a canary may have set it.
        self._is_padded = None
        trial = copy.copy(self)
        trial._texts = [_PROBE, " ".join([_PROBE] * 16)]
        trial._tokenize(progress)
        allowed = allowed_difference(str(self._model.dtype).removeprefix("torch."), self._spec)

        def depends() -> bool:
            unpadded = trial._forward(np.arange(1))()[0]
            padded_one = trial._forward(np.arange(2))()[0]
            distance = np.linalg.norm(padded_one - unpadded)
            return bool(distance > allowed * np.linalg.norm(unpadded))

        if not depends():
            return
        tokenizer: Any = getattr(self._model, "tokenizer", None)
        side = getattr(tokenizer, "padding_side", "")
        mend = ""
        if side:
            tokenizer.padding_side = other = "left" if side == "right" else "right"
            asked = {**(self._spec.kwargs.get("processor_kwargs") or {}), "padding_side": other}
            line = config_line(self._spec.kwargs, processor_kwargs=asked)
            mend = "" if depends() else f"Set `{line}`"
        raise WrongModelError(
            f"the vector of a text depends on the texts that it is padded with: {_PROBE!r} has "
            "another one next to a longer text than alone. The tokenizer pads on the "
            f"{side or 'right'}, and the model's attention or its positions count the padding. "
            + (mend or "Set `encode.batch_size: 1`, under which there is no padding")
            + "."
        )

    def facts(self) -> Facts:
        """Return dimension, dtype and maximum length, and versions of what computed the vectors."""
        import sentence_transformers
        import torch
        import transformers

        libraries = (torch, sentence_transformers, transformers, np)
        versions = {
            library.__name__.replace("_", "-"): str(library.__version__) for library in libraries
        }
        versions["python"] = platform.python_version()
        if torch.version.cuda:
            versions["cuda"] = torch.version.cuda
        return Facts(
            self._dimension,
            str(self._model.dtype).removeprefix("torch.") if self._model.dtype else "",
            max_length(self._model),
            versions,
            self._linear,
            loaded=describe(self._model, self._prompt, self._causal, self._load_log.notes),
            counts_cut=self._cut is not None,
        )

    def release(self) -> bool:
        """Free the weights, and say whether the GPU is free for another process.

        False for ONNX and OpenVINO, whose memory torch cannot free.
        """
        if self._device == "cpu":
            return True
        if self._model is None or self._model.get_backend() != "torch":
            return False
        import torch

        for tensor in (*self._model.parameters(), *self._model.buffers()):
            tensor.data = tensor.new_empty(0)
        torch.cuda.empty_cache()
        return bool(torch.cuda.memory_reserved() <= _LEFT_BYTES)

    def _load(self, device: str, progress: BeatWriter) -> None:
        progress.phase(Phase.MODEL_LOAD)
        if self._model is None:
            model = self._model = load_model(self._spec, device, self._load_log)
            self._truncate_dim = model.truncate_dim
            if device == self._device == "cpu":
                self._causal = check_attention(model, self._spec)
            if is_plain_text_model(model):
                # Embeddings are looked up, not multiplied. Counted before layers are packed, since
                # nothing is counted of a packed one.
                self._weight_count = int(
                    model.transformers_model.num_parameters(exclude_embeddings=True)
                )
                if self._device == "cpu":
                    self._linear = cpu.choose_kernel(model, self._sample_vector)
        # The dimension that is asked for, or else the one that was saved with the model.
        asked = self.encode_spec.truncate_dim
        self._model.truncate_dim = None  # so that the library says the full dimension
        full = self._model.get_embedding_dimension()
        if asked and full and asked > full:
            raise ValueError(
                f"encode.truncate_dim is {asked}, but the model's vectors have {full} dimensions "
                "only"
            )
        self._model.truncate_dim = asked or self._truncate_dim
        self._prompt = chosen_prompt(
            self.encode_spec, self._model.prompts, self._model.default_prompt_name
        )

    def _sample_vector(self) -> Any:
        """Compute the vector of eight tokens, of shape (1, dimension).

        Without the tokenizer, which would start threads in a template.
        """
        import torch

        rows = table_rows(self._model.transformers_model) or 8
        ids = torch.arange(rows // 2, rows // 2 + 8)[None] % rows
        with torch.inference_mode():
            return self._model({"input_ids": ids, "attention_mask": torch.ones_like(ids)})[
                "sentence_embedding"
            ]

    def _tokenize(self, progress: BeatWriter) -> None:
        self._rows = self._cut = None
        # `encode.kwargs` are for the model's own `encode`.
        if not is_plain_text_model(self._model) or self.encode_spec.kwargs:
            sizes = [len(f"{self._prompt or ''}{text}".encode()) for text in self._texts]
            limit = max_length(self._model) or max(sizes, default=0)
            self._lengths = np.array(
                [min(limit, batching.estimated_tokens(size)) for size in sizes], dtype=np.int64
            )
            return
        first = self._model[0]
        # Flash attention takes texts end to end; the tokenizer is to give them one by one.
        if getattr(first, "can_flatten_inputs", False):
            self._flat = True
            first.can_flatten_inputs = False
        # The model's own preprocessing (prompt, lower case, truncation), asked for lists without
        # padding.
        asked: dict[str, Any] = {
            "prompt": self._prompt,
            "processing_kwargs": {"text": {"padding": False}, "common": {"return_tensors": None}},
            **self._task,
        }
        rows = list[dict[str, Indices]]()
        cuts = list[tuple[int, int]]()
        says = True  # whether the tokenizer says what it cuts
        for start in range(0, len(self._texts), _SLICE):
            progress.tick()
            features = self._model.preprocess(self._texts[start : start + _SLICE], **asked)
            columns = {key: value for key, value in features.items() if isinstance(value, list)}
            self._extras = {key: value for key, value in features.items() if key not in columns}
            found = _cut_tokens(features)
            says = says and found is not None
            cuts += [(start + at, tokens) for at, tokens in found or ()]
            for row in zip(*columns.values(), strict=True):
                arrays = [np.array(ids, dtype=np.int64) for ids in row]
                rows.append(dict(zip(columns, arrays, strict=True)))
        self._rows = rows
        self._lengths = np.array([len(row["input_ids"]) for row in rows], dtype=np.int64)
        self._cut = np.array(cuts, dtype=np.int64).reshape(-1, 2) if says else None

    def _lanes(self, batches: Sequence[Indices]) -> Lanes:
        if self._rows is None or not cpu.is_stateless(self._model):
            return Lanes()
        import torch

        shared = [each for each in batches if len(each) > 1]
        largest = max((padded_tokens(self._lengths, each) for each in shared), default=0)
        return cpu.lanes_for(torch.get_num_threads(), len(shared), largest * self._weight_count)

    def _end_to_end(self, rows: Sequence[dict[str, Indices]]) -> dict[str, Any]:
        """Put the texts end to end for flash attention, as Transformer.preprocess does."""
        first = self._model[0]
        batch: dict[str, Any] = dict(
            first.data_collator([{"input_ids": row["input_ids"].tolist()} for row in rows])
        )
        del batch["labels"]
        batch["position_ids"] += getattr(first, "_flatten_position_offset", 0)
        return batch

    def _forward(self, indices: Indices) -> Callable[[], Vectors]:
        if self._rows is None:
            tensor = self._model.encode(
                [self._texts[index] for index in indices],
                prompt=self._prompt,
                batch_size=len(indices),
                show_progress_bar=False,
                convert_to_tensor=True,
                normalize_embeddings=self.encode_spec.normalize,
                **{**self._task, **self.encode_spec.kwargs},
            )
            return self._pinned.begin_copy(tensor.float())
        import torch

        rows = [self._rows[index] for index in indices]
        if self._flat:
            batch = self._end_to_end(rows)
        else:
            batch = padded(rows, self._model.tokenizer)
            self._is_padded = int(self._lengths[indices].sum()) < batch["input_ids"].size
        features = {
            key: value
            if isinstance(value, int)
            else self._pinned.to_device(key, torch.as_tensor(value), self._model.device)
            for key, value in batch.items()
        }
        with torch.inference_mode():
            vectors = self._model({**features, **self._extras})["sentence_embedding"]
            # In this order and in the model's dtype, as SentenceTransformer.encode does.
            if self._model.truncate_dim:
                vectors = vectors[..., : self._model.truncate_dim]
            if self.encode_spec.normalize:
                vectors = torch.nn.functional.normalize(vectors, p=2, dim=1)
            return self._pinned.begin_copy(vectors.float())
