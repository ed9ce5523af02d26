"""Quantises a converted network to int8, statically, on texts of the run, and computes what that costs its vectors.

NNCF sets the ranges of what flows through the network by what it sees there. Each text is a batch of its own: padding
would count as text.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor_worker.contract.arithmetic import Quantized
from chunkvisor_worker.contract.converted import Converted, ConvertedFiles, ConvertRequest
from chunkvisor_worker.converted_tokenizer import IDS, ConvertedTokenizer, Row, collate, prompted
from chunkvisor_worker.encoder import Indices, Vectors
from chunkvisor_worker.model import refuse_length
from chunkvisor_worker.openvino_encoder import threads, vectors_of
from chunkvisor_worker.quietopenvino import import_openvino, openvino_core
from chunkvisor_worker.tokenizer_check import check_ids

MOST_TOKENS = 2560
"""Of the longest text that a network is tried on: some models read those of more than 512 or 2,048 tokens in another
way, which a trace of shorter ones does not have. Attention takes 0.4 GB for it in a model of 16 heads."""

_CALIBRATED_TOKENS, _COMPARED_TOKENS = 32_768, 16_384
"""At most, of all texts together: this bounds the time. NNCF runs the network three times over the former."""
CALIBRATED_TEXTS = 150
"""At most. NNCF has 300 by default: vectors of commit messages by MiniLM were as near with 150 (least cosine 0.9951 and
0.9948), in 10 s instead of 18."""
_HELD_OUT = 4
"""Every so manieth text, from short to long, is not for the calibration, but is compared."""


def plain_files(files: ConvertedFiles) -> ConvertedFiles:
    """Where the network is in float32 while it is quantised: not among the files that are kept. Raises OSError."""
    plain = ConvertedFiles(files.folder.with_name("plain"))
    plain.folder.mkdir(mode=0o700, exist_ok=True)
    return plain


def quantize(plain: Path, files: ConvertedFiles, known: Converted, request: ConvertRequest) -> Quantized:
    """Write the quantised network, and the vectors of both on texts that it was not calibrated with.

    Raises ValueError for a prompt or a length that the model has not and for a tokenizer that is another model's,
    OSError, and what NNCF and OpenVINO raise.
    """
    openvino = import_openvino()
    import nncf  # after openvino, which is imported without what reports its use: NNCF heeds that as well

    calibrated, compared = split(_rows(files, known, request))
    dataset = nncf.Dataset([collate(known, [row]) for row in calibrated])
    made = nncf.quantize(
        openvino_core().read_model(plain),
        dataset,
        # Its preset for these is "mixed": symmetric ranges for weights, asymmetric ones for what flows.
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(calibrated),
    )
    # Names have a counter of the process in them; the digest is to tell whether the model is the same.
    for number, operation in enumerate(made.get_ordered_ops()):
        operation.set_friendly_name(f"{operation.get_type_name()}_{number}")
    openvino.save_model(made, files.network, compress_to_fp16=False)
    vectors = [_vectors(path, known, compared) for path in (plain, files.network)]
    np.save(files.compared, np.stack(vectors))
    return Quantized(len(calibrated), len(compared))


def split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Those to calibrate with, and others to compare, of all lengths both; of very few, all are both.

    Raises ValueError where there is none.
    """
    ordered = sorted((row for row in rows if len(row[IDS])), key=lambda row: len(row[IDS]))
    if not ordered:
        raise ValueError("model.dtype is int8, but no text of the run has a token to quantise the model by")
    if len(ordered) < _HELD_OUT:
        return ordered, ordered
    held = range(_HELD_OUT // 2, len(ordered), _HELD_OUT)
    rest = [row for number, row in enumerate(ordered) if number not in held]
    compared = [ordered[number] for number in held]
    return _within(rest, _CALIBRATED_TOKENS, CALIBRATED_TEXTS), _within(compared, _COMPARED_TOKENS, len(compared))


def _within(rows: list[Row], tokens: int, most: int) -> list[Row]:
    """At most so many of them, evenly spread, that have about so many tokens together; at least one."""
    total = sum(len(row[IDS]) for row in rows)
    count = max(1, min(len(rows), most, len(rows) * tokens // total))
    return [rows[(2 * place + 1) * len(rows) // (2 * count)] for place in range(count)]


def _rows(files: ConvertedFiles, known: Converted, request: ConvertRequest) -> list[Row]:
    """The texts as workers give them to the network, but for a longest length."""
    with open(request.texts, "rb") as file:
        texts: list[str] = [json.loads(line) for line in file]
    limit = request.model.max_length or known.max_length or MOST_TOKENS
    refuse_length(limit, known.positions)
    limit = min(limit, MOST_TOKENS)
    tokenizer, rows, first = ConvertedTokenizer(known, files.tokenizer, limit), list[Row](), 0
    for sample in request.samples:
        some = prompted(known, sample.encode, texts[first : first + sample.count])
        first += sample.count
        # A lone surrogate spoils its own row in the run, not the model.
        rows += tokenizer.encode(tokenizer.shortened([text.encode(errors="ignore").decode() for text in some]))
    check_ids(max((int(row[IDS].max(initial=0)) for row in rows), default=0), known.table_rows)
    return rows


def _vectors(network: Path, known: Converted, rows: Sequence[Row]) -> Vectors:
    """Of shape (rows, dimension). Raises MemoryError, and RuntimeError of OpenVINO."""
    openvino = import_openvino()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads(), "ENABLE_CPU_PINNING": False}
    compiled: Any = openvino_core().compile_model(network, "CPU", settings)
    request = compiled.create_infer_request()

    def compute(batch: dict[str, Indices], vectors: Vectors) -> None:
        request.set_output_tensor(0, openvino.Tensor(vectors, shared_memory=True))
        request.infer(batch, share_inputs=True, share_outputs=True)

    return np.concatenate([vectors_of(collate(known, [row]), (1, known.dimension), compute) for row in rows])
