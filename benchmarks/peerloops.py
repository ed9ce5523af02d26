"""One process of a peer that is no script of its own.

FastEmbed, or a bare loop over chunkvisor's batches.

python benchmarks/peerloops.py fastembed|torch MODEL TEXTS.json OUT.npy [--batch-size 32] [--pool
WORKERS]

MODEL is a folder: with model.onnx (see peerforms.py), or as sentence-transformers has it. Each
imports, loads, encodes and saves, and nothing else: what nobody does faster with the same backend.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

CHUNK_TEXTS = 1000
"""chunkvisor's default: batches are cut from so many texts."""
Vectors = np.ndarray[Any, np.dtype[np.float32]]


def fastembed(model: Path, texts: list[str], batch_size: int, workers: int) -> Vectors:
    """FastEmbed's own MiniLM, with its files from the folder."""
    from fastembed import TextEmbedding

    embedding = TextEmbedding(
        "sentence-transformers/all-MiniLM-L6-v2", specific_model_path=str(model)
    )
    return np.stack(list(embedding.embed(texts, batch_size=batch_size, parallel=workers or None)))


def torch_loop(model: Path, texts: list[str]) -> Vectors:
    """With transformers alone: mean pooling, vectors of length 1."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    network: Any = AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    limit = json.loads((model / "sentence_bert_config.json").read_text())["max_seq_length"]
    vectors = np.zeros((len(texts), network.config.hidden_size), dtype=np.float32)
    with torch.inference_mode():
        for first in range(0, len(texts), CHUNK_TEXTS):
            rows = tokenizer(texts[first : first + CHUNK_TEXTS], truncation=True, max_length=limit)[
                "input_ids"
            ]
            for indices, ids, mask in _batches(rows, tokenizer.pad_token_id):
                inputs = {
                    "input_ids": torch.from_numpy(ids),
                    "attention_mask": torch.from_numpy(mask),
                }
                hidden = network(**inputs).last_hidden_state
                shown = inputs["attention_mask"][:, :, None]
                means = (hidden * shown).sum(1) / shown.sum(1)
                vectors[first + indices] = torch.nn.functional.normalize(means).numpy()
    return vectors


def _batches(rows: list[list[int]], pad_id: int) -> Iterator[tuple[Any, Any, Any]]:
    """(indices, ids, mask) of chunkvisor's batches on a CPU.

    Ids and mask are int64 of shape (texts, tokens).
    """
    from chunkvisor.config.model import AUTO_TOKENS, PADDING_TOKENS
    from chunkvisor_worker.batching import batches_of
    from chunkvisor_worker.contract.messages import Limits

    limits = Limits(rows=1_000_000, tokens=AUTO_TOKENS["cpu"], padding=PADDING_TOKENS["cpu"])
    for indices in batches_of([len(row) for row in rows], limits):
        width = max(len(rows[index]) for index in indices)
        ids = np.full((len(indices), width), pad_id, dtype=np.int64)
        mask = np.zeros_like(ids)
        for number, index in enumerate(indices):
            ids[number, : len(rows[index])] = rows[index]
            mask[number, : len(rows[index])] = 1
        yield indices, ids, mask


def main() -> None:
    """Encode the texts and save the vectors."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("fastembed", "torch"))
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("out")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--pool", type=int, default=0)
    options = parser.parse_args()
    texts = json.loads(options.texts.read_text())
    if options.kind == "fastembed":
        vectors = fastembed(options.model, texts, options.batch_size, options.pool)
    else:
        vectors = torch_loop(options.model, texts)
    np.save(options.out, vectors)


if __name__ == "__main__":  # FastEmbed's workers import this module
    main()
