"""The encoder that runs a model converted for OpenVINO (see `convert`) on one chunk, on the CPU.

It imports neither torch nor transformers, so that a worker has begun in a fraction of the time. Its vectors are those
of plain `SentenceTransformer.encode` up to rounding; in bfloat16 and int8, up to what that type costs.
"""

import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor_worker.batching import computed_lengths, cut, slices
from chunkvisor_worker.contract.converted import Converted, ConvertedFiles
from chunkvisor_worker.contract.messages import EncodeSpec, Facts, Limits, ModelSpec, Phase
from chunkvisor_worker.contract.processor import lacks_int8, processor_flags
from chunkvisor_worker.contract.wire import read_message
from chunkvisor_worker.converted_tokenizer import IDS, ConvertedTokenizer, Row, collate, prompted
from chunkvisor_worker.encoder import Indices, Progress, Vectors
from chunkvisor_worker.flop import cores
from chunkvisor_worker.model import refuse_length, refuse_truncation
from chunkvisor_worker.openvino_rate import openvino_rate
from chunkvisor_worker.quietopenvino import import_openvino, openvino_core
from chunkvisor_worker.tokenizer_check import check_ids
from chunkvisor_worker.unitlength import unit_length

_PRECISIONS = {"auto": "f32", "float32": "f32", "bfloat16": "bf16", "int8": "f32"}
"""OpenVINO's name of each dtype. It has to be asked for: where the CPU has bfloat16, OpenVINO's own choice is that.
What a network has in int8 is computed in that all the same."""
_CAPABILITY = "BF16"
_INT8 = "int8"

_UNTOUCHED = 0x7FC0DEAD
"""What is in the place of a batch's vectors before they are computed: a NaN that no computation makes. Where an
allocation fails, OpenVINO 2026.4 returns without an error, and leaves what was there: the batch before, mostly."""


def vectors_of(
    batch: dict[str, Indices], shape: tuple[int, int], compute: Callable[[dict[str, Indices], Vectors], None]
) -> Vectors:
    """What `compute` writes into an array of that shape. Raises MemoryError where it has not."""
    vectors = np.full(shape, _UNTOUCHED, dtype=np.uint32).view(np.float32)
    compute(batch, vectors)
    if (vectors.view(np.uint32) == _UNTOUCHED).any():
        raise MemoryError("OpenVINO has returned without vectors: it had no memory for the batch")
    return vectors


class OpenvinoEncoder:
    """A converted model as an Encoder (see `chunkvisor_worker.encoder`)."""

    def __init__(self, model: ModelSpec, encode: EncodeSpec, device: str) -> None:
        assert device == "cpu"  # the config takes no other
        self._spec = model
        self._encode = encode
        self._core: Any = None
        self._tensor: Any = None
        self._network: Any = None
        self._request: Any = None
        self._peak = 0.0
        """Operations a second, of the cores that it uses; 0 = unknown."""
        self._known: Converted | None = None
        self._tokenizer: ConvertedTokenizer | None = None
        self._rows: list[Row] = []
        self._lengths: Indices = np.zeros(0, dtype=np.int64)

    def load(self, progress: Progress) -> None:
        """Read network and tokenizer; no thread is started. See `Encoder`.

        Raises ImportError, OSError, ValueError for a setting that cannot be met, RuntimeError of OpenVINO.
        """
        if self._core is None:
            progress.phase(Phase.IMPORT)
            openvino = import_openvino()
            import tokenizers  # noqa: F401 - the import is the work of this phase

            progress.phase(Phase.MODEL_LOAD)
            files = ConvertedFiles(Path(self._spec.converted or ""))
            self._known = read_message(Converted, files.record)
            if self._known is None:
                raise FileNotFoundError(f"there is no converted model in {files.folder}")
            limit = self._spec.max_length or self._known.max_length
            # A longer text would be read beyond the table of positions: OpenVINO checks no index.
            refuse_length(limit, self._known.positions)
            self._tokenizer = ConvertedTokenizer(self._known, files.tokenizer, limit)
            self._core, self._tensor = openvino_core(), openvino.Tensor
            self._refuse_dtype()
            self._network = self._core.read_model(files.network)
        refuse_truncation(self._encode.truncate_dim, self._model.dimension)

    def adopt(self, encode: EncodeSpec) -> None:
        """Take over what one output wants of the vectors; `load` comes after it."""
        self._encode = encode

    def tokenize(self, texts: list[str], progress: Progress) -> None:
        """Compile the network, turn the texts into token ids. Raises UnicodeEncodeError for a lone surrogate.

        It is not `load` that compiles: that starts threads, which a template must not have.
        """
        if self._request is None:
            progress.phase(Phase.MODEL_LOAD)
            settings = {
                "INFERENCE_PRECISION_HINT": _PRECISIONS[self._spec.dtype],
                "NUM_STREAMS": 1,
                "INFERENCE_NUM_THREADS": threads(),
                # The worker beside this one would be bound to the same cores.
                "ENABLE_CPU_PINNING": False,
            }
            self._request = self._core.compile_model(self._network, "CPU", settings).create_infer_request()
            if self._model.layers.weights:
                self._peak = progress.known_peak_flop_per_s or self._timed_peak(settings)
        progress.phase(Phase.TOKENIZE)
        assert self._tokenizer is not None
        texts = self._tokenizer.shortened(prompted(self._model, self._encode, texts))
        for part in slices([len(text.encode()) for text in texts]):
            progress.tick()
            self._rows += self._tokenizer.encode(texts[part])
        self._lengths = np.array([len(row[IDS]) for row in self._rows], dtype=np.int64)
        check_ids(max((int(row[IDS].max(initial=0)) for row in self._rows), default=0), self._model.table_rows)

    def start(self, progress: Progress) -> None:
        """There is nothing to move: the device is the CPU."""

    def encode(self, limits: Limits, progress: Progress) -> Iterator[tuple[Indices, Vectors]]:
        """Vectors of all texts, longest first; see `Encoder.encode`.

        Raises MemoryError, and RuntimeError of OpenVINO.
        """
        progress.expect(int(self._lengths.sum()), self._peak)
        for indices in cut(self._lengths, limits):
            if progress.leaving:
                return
            computed = computed_lengths(self._lengths, indices)
            padded = int(computed.sum())
            progress.batch(indices, padded)
            batch = collate(self._model, [self._rows[index] for index in indices])
            vectors = vectors_of(batch, (len(indices), self._model.dimension), self._compute)
            vectors = np.ascontiguousarray(vectors[:, : self._encode.truncate_dim])
            if self._encode.normalize:
                vectors = unit_length(vectors)
            flop = self._model.layers.flop(computed.tolist())
            progress.advance(len(indices), int(self._lengths[indices].sum()), padded, flop)
            yield indices, vectors

    def facts(self) -> Facts:
        """Dimension, dtype and maximum length; versions of what computed the vectors."""
        import tokenizers

        versions = {
            "openvino": str(import_openvino().__version__),
            "tokenizers": str(tokenizers.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        }
        if self._spec.dtype == _INT8:
            # Without these instructions sums of products saturate: the vectors are others by a part of what int8 costs.
            versions[_INT8] = "without VNNI" if lacks_int8(processor_flags()) else "by VNNI or AMX"
        dtype = "float32" if self._spec.dtype == "auto" else self._spec.dtype
        width = min(self._encode.truncate_dim or self._model.dimension, self._model.dimension)
        length = self._spec.max_length or self._model.max_length
        return Facts(width, dtype, length, versions, quantized=self._model.quantized)

    def release(self) -> bool:
        """The CPU is free when this process computes no longer."""
        return True

    def _timed_peak(self, settings: dict[str, Any]) -> float:
        return openvino_rate(self._core, settings, int8=self._spec.dtype == _INT8) * cores(threads())

    @property
    def _model(self) -> Converted:
        assert self._known is not None
        return self._known

    def _compute(self, batch: dict[str, Indices], vectors: Vectors) -> None:
        self._request.set_output_tensor(0, self._tensor(vectors, shared_memory=True))
        self._request.infer(batch, share_inputs=True, share_outputs=True)

    def _refuse_dtype(self) -> None:
        # OpenVINO would say nothing, and compute in float32: another CPU would then make other vectors of the same job.
        has = self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if self._spec.dtype == "bfloat16" and _CAPABILITY not in has:
            raise ValueError(
                "model.dtype is bfloat16, but OpenVINO has no bfloat16 on this CPU (it takes AVX-512); set float32"
            )


def threads() -> int:
    """Those that the supervisor gives a worker; 0 = OpenVINO's own choice."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdigit() else 0
