"""Makes the forms of a model that peers want, without a hub.

An ONNX file, and sentence-transformers' own for OpenVINO.

python benchmarks/peerforms.py onnx|openvino MODEL OUT
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

TOKENIZER_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
"""What FastEmbed reads beside the network."""


def onnx(model: Path, out: Path) -> None:
    """`model.onnx` from token ids to the last hidden state, and the tokenizer's files, cut where the model cuts."""
    import torch
    from transformers import AutoModel

    # sdpa would leave the mask out, as the example's has no gaps that it must see.
    network: Any = AutoModel.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    ).eval()

    class Hidden(torch.nn.Module):  # type: ignore[misc]  # torch is Any where it is not installed
        """The network with its inputs by position."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            """Shape (texts, tokens, dimension)."""
            return self.network(
                input_ids=ids, attention_mask=mask, token_type_ids=types
            ).last_hidden_state

    ids = torch.ones(2, 7, dtype=torch.int64)
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    axes = {
        0: torch.export.Dim("texts", min=1, max=4096),
        1: torch.export.Dim("tokens", min=2, max=512),
    }
    out.mkdir()
    torch.onnx.export(
        Hidden(),
        (ids, mask, torch.zeros_like(ids)),
        str(out / "model.onnx"),
        input_names=["input_ids", "attention_mask", "token_type_ids"],
        output_names=["last_hidden_state"],
        dynamo=True,
        dynamic_shapes=(axes, axes, axes),
        external_data=False,
    )
    for name in TOKENIZER_FILES:
        shutil.copyfile(model / name, out / name)
    tokenizer = json.loads((out / "tokenizer_config.json").read_text())
    tokenizer["model_max_length"] = json.loads((model / "sentence_bert_config.json").read_text())[
        "max_seq_length"
    ]
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer))


def openvino(model: Path, out: Path) -> None:
    """What `SentenceTransformer(..., backend="openvino")` loads without converting it again.

    Optimum does it.
    """
    from sentence_transformers import SentenceTransformer

    converted = SentenceTransformer(
        str(model), device="cpu", backend="openvino", model_kwargs={"export": True}
    )
    converted.save_pretrained(str(out))


def main() -> None:
    """Make the form."""
    parser = argparse.ArgumentParser()
    parser.add_argument("form", choices=("onnx", "openvino"))
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    (onnx if options.form == "onnx" else openvino)(options.model, options.out)


if __name__ == "__main__":
    main()
