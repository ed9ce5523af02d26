"""The encoder that runs a sentence-transformers model on one chunk.

Its vectors are those that `SentenceTransformer.encode` gives for the same texts, up to the rounding that comes with
another batch. Where there is no GPU to be had it fails, and does not fall back to the CPU.
"""

import gc
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from chunkvisor_worker import attention, cpu
from chunkvisor_worker.batching import NONE_CUT, GpuMemory, Indices, Vectors, computed_lengths, cut, cut_measured
from chunkvisor_worker.contract.messages import EncodeSpec, Facts, Limits, LinearKernel, ModelSpec, Phase
from chunkvisor_worker.cpu import Lanes, is_stateless, lanes_for, weights_of
from chunkvisor_worker.loaded import Heard, check_attention, check_loaded, describe, hearing
from chunkvisor_worker.model import (
    chosen_prompt,
    is_placed_by_loading,
    is_plain_text_model,
    load_model,
    max_length,
    sample_vector,
    set_truncate_dim,
)
from chunkvisor_worker.plugin import BadOutputError
from chunkvisor_worker.progress import BeatWriter
from chunkvisor_worker.tokenized import TokenizedTexts, estimated_lengths, tokenize


class PinnedBuffers:
    """Pinned host memory through which a batch goes to the device and its vectors come back.

    It is kept: torch records an event in the destructor of a pinned tensor, where the error of a context that is lost
    cannot be raised, and ends the process by abort (CachingHostAllocator; pytorch#84756). Two batches take turns:
    before the third uses the buffers of the first, the vectors of that one have been waited for.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, str], Any] = {}
        self._outgrown: list[Any] = []
        self._turn = 0

    def next_batch(self) -> None:
        """From now on copies are those of another batch."""
        self._turn = 1 - self._turn

    def to_device(self, name: str, tensor: Any, device: Any) -> Any:
        """The tensor on the device, by a copy that does not wait for the batch that is computed there."""
        if device.type == "cpu":
            return tensor.to(device)
        return self._like(name, tensor).copy_(tensor).to(device, non_blocking=True)

    def begin_copy(self, vectors: Any) -> Callable[[], Vectors]:
        """Begin to copy the vectors to host memory; the function that comes back waits for the copy."""
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
        """Pinned memory of the tensor's shape and type, from the buffer of this name, which grows by doubling."""
        import torch

        key = self._turn, name
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < tensor.numel() or buffer.dtype != tensor.dtype:
            if buffer is not None:
                self._outgrown.append(buffer)
            capacity = 1 << max(0, tensor.numel() - 1).bit_length()
            buffer = self._buffers[key] = torch.empty(capacity, dtype=tensor.dtype, pin_memory=True)
        return buffer[: tensor.numel()].view(tensor.shape)


_LEFT_BYTES = 256 << 20
"""What torch may still hold of a GPU that is free for the next worker: workspaces of cuBLAS."""


class SentenceTransformerEncoder:
    """A sentence-transformers model as an Encoder (see `chunkvisor_worker.encoder`).

    A plain text model is tokenized once, ahead of the device, and forwarded in batches of like token length. Any other
    (custom or multimodal modules, static embeddings, ONNX) goes batch by batch through the
    library's own `encode`, with token counts estimated from the length in bytes.
    """

    def __init__(self, model: ModelSpec, encode: EncodeSpec, device: str) -> None:
        self._spec = model
        self._encode = encode
        self._device = device
        self._model: Any = None
        self._prompt: str | None = None
        self._heard = Heard()
        self._causal: bool | None = None
        self._truncate_dim: int | None = None
        """That was saved with the model."""
        self._texts: list[str] = []
        self._tokenized: TokenizedTexts | None = None
        """None where token counts are only estimated."""
        self._lengths: Indices = np.zeros(0, dtype=np.int64)
        self._dimension = 0
        self._linear: LinearKernel | None = None
        self._weights = 0
        """See `lanes.weights_of`; 0 where batches are computed one after the other."""
        self._pinned = PinnedBuffers()

    def load(self, progress: BeatWriter) -> None:
        """Import torch and sentence-transformers and load the weights to host memory.

        A quantized model or one with a device map is loaded by `start` where the device is a GPU. Weights that are
        there already are kept.
        Raises ImportError, ValueError, OSError, and whatever the libraries raise.
        """
        progress.phase(Phase.IMPORT)
        # What an import makes stays. To look for what can be freed among its 400,000 objects, seven times meanwhile and
        # now and then later, takes 0.8 of the 6 s that the import takes.
        gc.disable()
        import huggingface_hub.utils
        import sentence_transformers  # noqa: F401 - the import is the work of this phase
        import transformers

        gc.freeze()
        gc.enable()
        transformers.utils.logging.disable_progress_bar()
        huggingface_hub.utils.disable_progress_bars()
        if self._device == "cpu" or not is_placed_by_loading(self._spec):
            self._load("cpu", progress)

    def adopt(self, encode: EncodeSpec) -> None:
        """Take over what one output wants of the vectors; `load` comes after it, and finds the weights there."""
        self._encode = encode

    def tokenize(self, texts: list[str], progress: BeatWriter) -> None:
        """Turn the texts into token ids. Raises UnicodeEncodeError (a ValueError) for a lone surrogate."""
        self._texts = texts
        if self._model is not None:
            self._tokenize(progress)

    def start(self, progress: BeatWriter) -> None:
        """Move the model to the device. Raises torch's own error where there is no GPU to be had."""
        if self._device != "cpu":
            import torch

            attention.prepare()
            progress.phase(Phase.CUDA_INIT)
            # An allocation gives the reason (no driver, no device, CPU-only build); is_available() only says no.
            torch.zeros(1, device=self._device)
        if self._model is None:
            self._load(self._device, progress)
            self._tokenize(progress)
        elif self._device != "cpu":
            progress.phase(Phase.WEIGHTS_COPY)
            self._model.to(self._device)
        if self._device != "cpu":
            self._causal = check_attention(self._model, self._spec)

    def texts_cut(self) -> Indices:
        """See `Encoder.texts_cut`."""
        return NONE_CUT if self._tokenized is None or self._tokenized.cut is None else self._tokenized.cut

    def encode(self, limits: Limits, progress: BeatWriter) -> Iterator[tuple[Indices, Vectors]]:
        """Vectors of all texts, longest first; see `Encoder.encode`.

        On a GPU a batch is padded and launched while the one before it computes; then the vectors of that one are
        waited for. Nothing in between waits for the device, as far as plain models of transformers go (`attention`):
        custom modules may ask it for values and so wait, which costs a pause and no vector. On a CPU there may be
        several `lanes`. Raises BadOutputError for an output that is not one vector a text.
        """
        counted = self._tokenized is not None
        if counted:
            progress.expect(int(self._lengths.sum()))
        batches, lanes = self._batches(limits), Lanes(ahead=1)
        if self._device == "cpu":
            batches = list(batches)
            lanes = self._lanes(batches)

        def begins(indices: Indices) -> bool:
            if progress.leaving:
                return False
            progress.batch(indices, int(self._computed(indices).sum()) if counted else 0)
            self._pinned.next_batch()
            return True

        for indices, vectors in lanes.compute(batches, begins, self._forward):
            if vectors.ndim != 2 or len(vectors) != len(indices):
                raise BadOutputError(f"the model returned shape {vectors.shape} for {len(indices)} texts")
            self._dimension = vectors.shape[1]
            computed = self._computed(indices)
            tokens, padded = (int(each.sum()) if counted else 0 for each in (self._lengths[indices], computed))
            progress.advance(len(indices), tokens, padded)
            yield indices, vectors

    def facts(self) -> Facts:
        """Dimension, dtype and maximum length as found; versions of what computed the vectors."""
        import sentence_transformers
        import torch
        import transformers

        libraries = (torch, sentence_transformers, transformers, np)
        versions = {library.__name__.replace("_", "-"): str(library.__version__) for library in libraries}
        versions["python"] = platform.python_version()
        if torch.version.cuda:
            versions["cuda"] = torch.version.cuda
        dtype = str(self._model.dtype).removeprefix("torch.") if self._model.dtype is not None else ""
        counts_cut = self._tokenized is not None and self._tokenized.cut is not None
        loaded = describe(self._model, self._prompt, self._causal, self._heard.bounded())
        return Facts(
            self._dimension,
            dtype,
            max_length(self._model),
            versions,
            self._linear,
            loaded=loaded,
            counts_cut=counts_cut,
        )

    def release(self) -> bool:
        """Drop the weights; False where the GPU's memory is not ours to give back (ONNX, OpenVINO). See `Encoder`."""
        if self._device == "cpu":
            return True
        return self._model is not None and self._model.get_backend() == "torch" and _drop_weights(self._model)

    def _load(self, device: str, progress: BeatWriter) -> None:
        progress.phase(Phase.MODEL_LOAD)
        if self._model is None:
            with hearing(self._heard):
                self._model = load_model(self._spec, device)
            check_loaded(self._model, self._spec, self._heard)
            self._truncate_dim = self._model.truncate_dim
            if device == self._device == "cpu":
                self._causal = check_attention(self._model, self._spec)
            if is_plain_text_model(self._model):
                self._weights = weights_of(self._model)  # before layers are packed: those keep none
                if self._device == "cpu":
                    self._linear = cpu.choose(self._model, lambda: sample_vector(self._model))
        set_truncate_dim(self._model, self._encode.truncate_dim, self._truncate_dim)
        self._prompt = chosen_prompt(self._encode, self._model.prompts, self._model.default_prompt_name)

    def _tokenize(self, progress: BeatWriter) -> None:
        progress.phase(Phase.TOKENIZE)
        # What the model's own `encode` is to be given, it is given.
        if is_plain_text_model(self._model) and not self._encode.kwargs:
            self._tokenized = tokenize(self._model, self._texts, self._prompt, progress, self._encode.task)
            self._lengths = self._tokenized.lengths
        else:
            self._lengths = estimated_lengths(self._model, self._texts, self._prompt)

    def _computed(self, indices: Indices) -> Indices:
        return computed_lengths(self._lengths, indices, flat=self._tokenized is not None and self._tokenized.flat)

    def _lanes(self, batches: Sequence[Indices]) -> Lanes:
        if self._tokenized is None or self._tokenized.flat or not is_stateless(self._model):
            return Lanes()
        import torch

        shared = [each for each in batches if len(each) > 1]
        largest = max((int(self._computed(each).sum()) for each in shared), default=0)
        return lanes_for(torch.get_num_threads(), len(shared), largest * self._weights)

    def _batches(self, limits: Limits) -> Iterable[Indices]:
        known = self._tokenized
        flat = known is not None and known.flat
        if self._device == "cpu" or not limits.measured or known is None:
            return cut(self._lengths, limits, flat=flat)
        import torch

        needs = GpuMemory(torch).needs
        return cut_measured(self._lengths, limits, needs, self._mask_element_bytes(), flat=flat)

    def _mask_element_bytes(self) -> int:
        """Size of a number of an attention mask; 0 where attention takes no mask over pairs of tokens."""
        config = getattr(self._model.transformers_model, "config", None)
        return int(self._model.dtype.itemsize) if getattr(config, "_attn_implementation", "") == "sdpa" else 0

    def _forward(self, indices: Indices) -> Callable[[], Vectors]:
        tokenized = self._tokenized
        if tokenized is None:
            return self._forward_texts(indices)
        import torch

        batch = tokenized.batch(self._model, indices)
        # A model's own code may change the mask before it gets to transformers.
        known = "attention_mask" in batch and not self._spec.trust_remote_code
        padded = not bool(batch["attention_mask"].all()) if known else None
        features = {
            key: self._pinned.to_device(key, value, self._model.device) if torch.is_tensor(value) else value
            for key, value in batch.items()
        }
        with torch.inference_mode(), attention.known_padding(padded):
            vectors = self._model({**features, **tokenized.extras})["sentence_embedding"]
            # In this order and in the model's dtype, as SentenceTransformer.encode does.
            if self._model.truncate_dim is not None:
                vectors = vectors[..., : self._model.truncate_dim]
            if self._encode.normalize:
                vectors = torch.nn.functional.normalize(vectors, p=2, dim=1)
            return self._pinned.begin_copy(vectors.float())

    def _forward_texts(self, indices: Indices) -> Callable[[], Vectors]:
        task = {"task": self._encode.task} if self._encode.task is not None else {}
        tensor = self._model.encode(
            [self._texts[index] for index in indices],
            prompt=self._prompt,
            batch_size=len(indices),
            show_progress_bar=False,
            convert_to_tensor=True,
            normalize_embeddings=self._encode.normalize,
            **{**task, **self._encode.kwargs},
        )
        return self._pinned.begin_copy(tensor.float())


def _drop_weights(model: Any) -> bool:
    """Give the GPU's memory back; whether nearly all of it is free then. Raises what torch raises."""
    import torch

    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.new_empty(0)
    torch.cuda.empty_cache()
    return bool(torch.cuda.memory_reserved() <= _LEFT_BYTES)
