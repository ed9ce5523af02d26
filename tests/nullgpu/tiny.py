"""Makes a tiny random BERT, as a sentence-transformers folder. `python tests/nullgpu/tiny.py
FOLDER` does it.

It computes nothing sensible, and takes 0.6 MB.
"""

import sys
from pathlib import Path

WORDS = 100
DIMENSION = 64
POSITIONS = 512


def make_bert(folder: Path) -> None:
    """Save a BERT with random weights that knows the words word0, word1, …, each of them one token."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + [
        str(digit) for digit in range(10)
    ]
    words = [
        *special,
        *letters,
        *(f"##{letter}" for letter in letters),
        *(f"word{i}" for i in range(WORDS)),
    ]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=BertWordPieceTokenizer(
            {word: i for i, word in enumerate(words)}
        )._tokenizer,
        model_max_length=POSITIONS,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=DIMENSION,
        num_hidden_layers=2,
        num_attention_heads=DIMENSION // 16,
        intermediate_size=2 * DIMENSION,
        max_position_embeddings=POSITIONS,
    )
    raw = folder / "raw"
    BertModel(config).save_pretrained(raw)
    tokenizer.save_pretrained(raw)
    model = SentenceTransformer(modules=[Transformer(str(raw)), Pooling(DIMENSION)], device="cpu")
    model.save(str(folder / "model"))


if __name__ == "__main__":
    make_bert(Path(sys.argv[1]))
