"""A small BERT with random weights, for tests in which the numbers do not matter but the way to them does."""

from pathlib import Path
from typing import Any


def save_small_bert(folder: Path, tokenizer: Path, *behind: Any) -> Path:
    """Save it in the folder, with that model's tokenizer and these modules behind it; returns the model's folder.

    It has 32 dimensions, reads 64 tokens, and has one prompt, `query`. Its weights are the same each time.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(1)
    layers: Any = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    BertModel(BertConfig(vocab_size=30522, **layers)).save_pretrained(folder / "backbone")
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder / "backbone")
    modules = [Transformer(str(folder / "backbone")), *behind]
    model = SentenceTransformer(modules=modules, device="cpu", prompts={"query": "look for: "})
    model.max_seq_length = 64
    model.save(str(folder / "whole"))
    return folder / "whole"
