"""`python -m chunkvisor_worker.convert FOLDER`: converts a model for OpenVINO, once for all workers.

The network is traced from the model as sentence-transformers runs it, from token ids to the vector, so that pooling and
whatever follows it are the model's own. Its vectors are then compared with the model's, on batches of several shapes: a
model that cannot be traced, since its code looks at values or shapes, is refused here and spoils nothing. For int8 it
is then quantised (see `quantize`); where it has been converted before, that is all.
"""

import contextlib
import hashlib
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor_worker.contract.converted import Converted, ConvertedFiles, ConvertRequest
from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.files import AttemptFiles, open_regular
from chunkvisor_worker.contract.messages import Phase
from chunkvisor_worker.contract.wire import read_message, write_message
from chunkvisor_worker.converted_tokenizer import ConvertedTokenizer, collate
from chunkvisor_worker.faults import recorded
from chunkvisor_worker.flop import layer_shapes
from chunkvisor_worker.lateimports import LateImports
from chunkvisor_worker.liveness import die_with_parent, leave, only_argument
from chunkvisor_worker.model import is_plain_text_model, load_model, max_length, position_limit, table_rows
from chunkvisor_worker.quantize import MOST_TOKENS, plain_files, quantize
from chunkvisor_worker.quietopenvino import import_openvino, openvino_core
from chunkvisor_worker.tokenizer_check import SAMPLES

INPUTS = ("input_ids", "attention_mask", "token_type_ids")

_TOLERANCE = 1e-4
"""Largest difference of two vectors, relative to their largest component, that rounding in float32 explains; what is
traced wrongly differs by far more. MiniLM's differ by 1e-6 at most."""
_TEXTS = (*SAMPLES, " ".join(SAMPLES), "Fix: Close the FILE before it's renamed (#1234)\n\n\ttwice", SAMPLES[0] * 7)
"""Of several languages and lengths."""
_REST_BYTES = 4 << 20
"""Of a converted model beside its weights, at most: the network is some hundred KB."""


class CannotConvertError(ValueError):
    """The model cannot be used with OpenVINO; the message says why, and begins with the key."""

    def __init__(self, why: str) -> None:
        super().__init__(f"model.backend is openvino, but {why}; set it to torch")


def convert(request: ConvertRequest, files: ConvertedFiles) -> None:
    """Write the files. Raises CannotConvertError, OSError, and what `load_model`, `quantize` and OpenVINO raise."""
    known = _quantize(request, files) if request.samples else _convert(request, files, files.network)
    # Nothing is synced: whoever uses the files compares the digests first, and has them made anew.
    digests = {path.name: _digest_of(path) for path in files.content}
    write_message(files.record, replace(known, made_from=request.made_from, digests=digests))


def _quantize(request: ConvertRequest, files: ConvertedFiles) -> Converted:
    plain = ConvertedFiles(Path(request.plain)) if request.plain else plain_files(files)
    known = read_message(Converted, plain.record)
    if known is None:
        known = _convert(request, files, plain.network)
    else:
        shutil.copyfile(plain.tokenizer, files.tokenizer)
    with _telling_full_disk(files, plain.weights.stat().st_size):
        return replace(known, quantized=quantize(plain.network, files, known, request))


def _convert(request: ConvertRequest, files: ConvertedFiles, network_file: Path) -> Converted:
    """Write the tokenizer and, where told, the network in float32 with its weights; the record has no digests yet."""
    with LateImports():
        import sentence_transformers
        import transformers
    import torch

    openvino = import_openvino()
    model = load_model(replace(request.model, dtype="float32", max_length=None), "cpu")
    refuse_others(model)
    backend = model.tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    # Not by its own `save`, whose errors bear no number.
    files.tokenizer.write_text(backend.to_str(), encoding="utf-8")
    known = _describe(model, request.made_from)
    rows = _tokens(model, known, files)
    with torch.inference_mode():
        network = _traced(model, known.inputs, collate(known, rows))
        with _telling_full_disk(files, sum(each.numel() * each.element_size() for each in model.parameters())):
            openvino.save_model(network, network_file, compress_to_fp16=False)
            difference, dimension = _compare(model, known, rows, _longest(known, files), network_file)
    if not difference <= _TOLERANCE:
        raise CannotConvertError(f"the converted model's vectors differ from its own by {difference:.1e} of their size")
    libraries = (torch, sentence_transformers, transformers)
    versions = {library.__name__.replace("_", "-"): str(library.__version__) for library in libraries}
    return replace(known, difference=difference, dimension=dimension, versions=versions)


def refuse_others(model: Any) -> None:
    """Raises CannotConvertError for a model that takes more than the ids of a fast tokenizer, or gives more."""
    if not is_plain_text_model(model):
        kinds = ", ".join(type(module).__name__ for module in model)
        raise CannotConvertError(f"this model is no plain text model of sentence-transformers (it has {kinds})")
    if not hasattr(model.tokenizer, "backend_tokenizer"):
        raise CannotConvertError(f"its tokenizer, {type(model.tokenizer).__name__}, is none of the package tokenizers")


def _describe(model: Any, made_from: str) -> Converted:
    tokenizer, transformer = model.tokenizer, model.transformers_model
    wanted = [name for name in tokenizer.model_input_names if name in INPUTS]
    return Converted(
        made_from=made_from,
        digests={},
        inputs=tuple(name for name in INPUTS if name in wanted),
        dimension=0,
        pad_id=int(tokenizer.pad_token_id or 0),
        pad_type_id=int(tokenizer.pad_token_type_id or 0),
        pads_left=tokenizer.padding_side == "left",
        truncates_left=tokenizer.truncation_side == "left",
        table_rows=table_rows(transformer),
        max_length=max_length(model),
        positions=position_limit(transformer),
        prompts={str(name): str(prompt) for name, prompt in model.prompts.items()},
        default_prompt_name=model.default_prompt_name,
        pools_prompt=all(getattr(module, "include_prompt", True) for module in model),
        difference=0.0,
        versions={},
        layers=layer_shapes(transformer),
    )


def _tokens(model: Any, known: Converted, files: ConvertedFiles) -> list[dict[str, Any]]:
    """The sample's. Raises CannotConvertError where the tokenizer alone gives others than the model's preprocessing."""
    unpadded = {"text": {"padding": False}, "common": {"return_tensors": None}}
    expected = model.preprocess(list(_TEXTS), processing_kwargs=unpadded)
    columns = [key for key, value in expected.items() if isinstance(value, list)]
    if set(columns) != set(known.inputs):
        raise CannotConvertError(f"it wants {', '.join(columns)} of a text")
    found = ConvertedTokenizer(known, files.tokenizer, known.max_length).encode(list(_TEXTS))
    for name in known.inputs:
        if [list(row[name]) for row in found] != [list(row) for row in expected[name]]:
            raise CannotConvertError(f"its preprocessing does more than its tokenizer: {name} differ")
    return found


def _traced(model: Any, names: Sequence[str], example: dict[str, Any]) -> Any:
    """The OpenVINO model of the whole, with batches of any shape."""
    import torch

    openvino = import_openvino()

    class Whole(torch.nn.Module):  # type: ignore[misc]  # torch is Any where it is not installed
        """From inputs in the order of `names` to vectors."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            """Vectors of shape (rows, dimension)."""
            return self.model(dict(zip(names, inputs, strict=True)))["sentence_embedding"]

    given = tuple(torch.from_numpy(example[name]) for name in names)
    with warnings.catch_warnings():
        # That a trace holds for its example only, if code looks at values: `_compare` finds that out.
        warnings.simplefilter("ignore")
        network = openvino.convert_model(Whole(), example_input=given)
    for port, name in zip(network.inputs, names, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_partial_shape(openvino.PartialShape([-1, -1]))
        port.get_node().set_element_type(openvino.Type.i64)
    network.validate_nodes_and_infer_types()
    return network


def _longest(known: Converted, files: ConvertedFiles) -> list[dict[str, Any]]:
    """One row, of as many tokens as the model has positions for, up to `_MOST_TOKENS`."""
    limit = min(known.positions or known.max_length or MOST_TOKENS, MOST_TOKENS)
    return ConvertedTokenizer(known, files.tokenizer, limit).encode([" ".join(SAMPLES) * (1 + limit // len(SAMPLES))])


def _compare(
    model: Any, known: Converted, rows: list[dict[str, Any]], longest: list[dict[str, Any]], network: Path
) -> tuple[float, int]:
    """(largest difference relative to the largest component, dimension), of the network as it was saved."""
    import torch

    compiled = openvino_core().compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    largest, dimension = 0.0, 0
    for chosen in (rows[:1], rows[1:2], rows, rows[2:4], longest):
        batch = collate(known, chosen)
        own = model({name: torch.from_numpy(values) for name, values in batch.items()})["sentence_embedding"].numpy()
        found = compiled(batch)[0]
        if found.shape != own.shape:
            raise CannotConvertError(f"the converted model gives shape {found.shape} where its own is {own.shape}")
        largest = max(largest, float(np.abs(found - own).max() / max(np.abs(own).max(), 1e-30)))
        dimension = own.shape[1]
    return largest, dimension


@contextlib.contextmanager
def _telling_full_disk(files: ConvertedFiles, size_bytes: int) -> Iterator[None]:
    """Raises OSError in place of RuntimeError where the disk has no room for the weights, of so many bytes at most.

    Of a write that fails OpenVINO says "iostream error" and nothing of why, and it removes what it has written.
    """
    try:
        yield
    except RuntimeError:
        try:
            with open(files.weights, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, size_bytes + _REST_BYTES)
        finally:
            files.weights.unlink(missing_ok=True)
        raise


def _digest_of(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Convert, and leave the record in the target, or fault.json in the folder."""
    files = AttemptFiles(only_argument("python -m chunkvisor_worker.convert FOLDER"))
    die_with_parent()
    request = read_message(ConvertRequest, files.spec)
    if request is None:
        leave(WorkerExit.USAGE, f"{files.spec} is missing or is no request")
    with recorded(files.fault, Phase.MODEL_LOAD):
        convert(request, ConvertedFiles(Path(request.target)))


if __name__ == "__main__":
    main()
