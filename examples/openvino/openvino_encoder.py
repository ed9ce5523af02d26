"""A plug-in encoder that computes on a CPU with OpenVINO; its workers import no torch.

Convert the folder of a sentence-transformers model once, which takes torch and openvino:

    python examples/openvino/openvino_encoder.py all-MiniLM-L6-v2 cache/minilm-openvino

and name the result in a config next to a copy of this file:

    model: {name: cache/minilm-openvino, encoder: "openvino_encoder:make"}
    device: cpu

It is for plain text models whose tokenizer is one of the package tokenizers.
"""

import sys
from pathlib import Path

import numpy as np

ATTRIBUTES = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


class OpenvinoEncoder:
    """The network and its tokenizer, loaded once in each worker."""

    def __init__(self, folder: Path) -> None:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it would report each import
        import openvino
        from tokenizers import Tokenizer

        # it cuts and pads as the model's own
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        # without it, a CPU that has bfloat16 computes in that
        hint = {"INFERENCE_PRECISION_HINT": "f32"}
        self.network = openvino.Core().compile_model(folder / "model.xml", "CPU", hint)
        self.names = [port.any_name for port in self.network.inputs]

    def encode(self, texts: list[str], batch_size: int) -> np.ndarray:
        """Vectors in float32, shape (texts, dimension).

        Texts of like length share a batch: little padding.
        """
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        found: dict[int, np.ndarray] = {}
        for first in range(0, len(texts), batch_size):
            rows = order[first : first + batch_size]
            encoded = self.tokenizer.encode_batch([texts[row] for row in rows])
            batch = {
                name: np.array([getattr(each, ATTRIBUTES[name]) for each in encoded])
                for name in self.names
            }
            found |= zip(rows, self.network(batch)[0], strict=True)
        return np.stack([found[row] for row in range(len(texts))]).astype(np.float32)


def make(model, device):  # type: ignore[no-untyped-def]  # noqa: ARG001 - it computes on the CPU only
    """The factory that the config names; `model.name` is the folder that `convert` has written."""
    return OpenvinoEncoder(Path(model.name))


def convert(source: str, target: Path) -> None:
    """Write model.xml, model.bin and tokenizer.json.

    From token ids to the vector, pooling included.
    """
    import openvino
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(source, device="cpu", model_kwargs={"dtype": torch.float32})
    example = model.tokenizer(
        ["a short text", "a text that is a little longer"], padding=True, return_tensors="pt"
    )
    names = [name for name in ATTRIBUTES if name in example]

    class Whole(torch.nn.Sequential):  # type: ignore[misc]
        def forward(self, *values):  # type: ignore[no-untyped-def]
            return self[0](dict(zip(names, values, strict=True)))["sentence_embedding"]

    with torch.inference_mode():
        network = openvino.convert_model(
            Whole(model), example_input=tuple(example[name] for name in names)
        )
    for port, name in zip(network.inputs, names, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_partial_shape(openvino.PartialShape([-1, -1]))
    network.validate_nodes_and_infer_types()
    openvino.save_model(network, target / "model.xml", compress_to_fp16=False)
    tokenizer = model.tokenizer.backend_tokenizer
    tokenizer.enable_truncation(model.max_seq_length)
    tokenizer.enable_padding(
        pad_id=model.tokenizer.pad_token_id, pad_token=model.tokenizer.pad_token
    )
    tokenizer.save(str(target / "tokenizer.json"))


if __name__ == "__main__":
    convert(sys.argv[1], Path(sys.argv[2]))
