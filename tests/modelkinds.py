"""Builds models of many kinds, tiny and with random weights, as folders of sentence-transformers.

All have the same vocabulary: the 256 bytes and a few special tokens, so each knows every text.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>")
ROWS = 256 + len(SPECIAL)
LENGTH = 64
WIDTH = 32

LAYERS: dict[str, Any] = {
    "vocab_size": ROWS,
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
"""Weights are wide, so that what should be seen in the vectors is."""
T5: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}


def tokenizer(template: str = "[CLS] $A [SEP]", **settings: Any) -> Any:
    """A tokenizer of bytes that puts these special tokens around a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    ids = {word: number for number, word in enumerate(words)}
    made: Any = Tokenizer(models.BPE(ids, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = [(word, ids[word]) for word in SPECIAL if word in template]
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=LENGTH, **{**names, **settings}
    )


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZÉéﬁ0123456789."
MERGES = [("F", "o"), ("Fo", "x"), ("f", "o"), ("fo", "x"), ("1", "2")]


def words(name: str) -> Any:
    """A tokenizer of that class of transformers, with letters or bytes and a few longer tokens."""
    import transformers
    from tokenizers import pre_tokenizers

    made = getattr(transformers, f"{name}Tokenizer")
    special = made().get_vocab()
    tokens, longer = sorted(special, key=special.get), ["".join(pair) for pair in MERGES]
    given: dict[str, Any] = {"model_max_length": LENGTH}
    if made.model.__name__ == "Unigram":
        tokens += [token for token in ("▁", *LETTERS, *longer) if token not in special]
        return made([(token, float(len(token) - len(LETTERS))) for token in tokens], **given)
    if made.model.__name__ == "WordPiece":
        tokens += [*LETTERS, *(f"##{letter}" for letter in LETTERS), *longer]
    else:
        tokens += [f"<0x{byte:02X}>" for byte in range(256)]
        tokens += ["▁", *sorted({*LETTERS, *pre_tokenizers.ByteLevel.alphabet()}), *longer]
        given |= {"merges": MERGES, "pad_token": tokens[0]}
    return made({token: number for number, token in enumerate(tokens)}, **given)


def of_class(name: str, transformer: str = "", **changes: Any) -> Callable[[Path], Path]:
    """A builder of a model with such a tokenizer, whose tokenizer.json is changed afterwards."""

    def build(folder: Path) -> Path:
        given = words(name)
        layers = {"vocab_size": len(given) + 1, "pad_token_id": given.pad_token_id}
        layers |= {"bos_token_id": 0, "eos_token_id": 0, "num_key_value_heads": 2, "head_dim": 8}
        path = save(folder, of(transformer or name, **layers | T5), given)
        file = path / "tokenizer.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
        return path

    return build


def configured(
    build: Callable[[Path], Path], file: str = "tokenizer_config.json", **keys: Any
) -> Callable[[Path], Path]:
    """A builder of that model with other keys in a JSON file of its folder."""

    def built(folder: Path) -> Path:
        path = build(folder)
        change(path / file, **keys)
        return path

    return built


def save(
    folder: Path,
    transformer: Any,
    words: Any | None = None,
    pooling: str = "mean",
    *more: Any,
    **settings: Any,
) -> Path:
    """Save a model of transformers with a pooling and more modules behind it; returns its folder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    modules = [backbone(folder / "backbone", transformer, words), Pooling(WIDTH, pooling), *more]
    SentenceTransformer(modules=modules, device="cpu", **settings).save(str(folder / "model"))
    return folder / "model"


def backbone(folder: Path, transformer: Any, words: Any | None = None) -> Any:
    """The Transformer module alone, as it is loaded from a folder."""
    from sentence_transformers.base.modules import Transformer

    transformer.save_pretrained(folder)
    (words or tokenizer()).save_pretrained(folder)
    return Transformer(str(folder))


def change(path: Path, **keys: Any) -> None:
    """Change keys of a JSON object in a file, which is made if it is not there; None takes a key
    away.
    """
    saved = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(
        json.dumps({key: value for key, value in (saved | keys).items() if value is not None})
    )


def bert(folder: Path, **settings: Any) -> Path:
    """BERT with mean pooling."""
    return save(folder, of("Bert"), **settings)


def of(name: str, **settings: Any) -> Any:
    """A random model of transformers, the same each time."""
    import torch
    import transformers

    torch.manual_seed(len(name))
    config = getattr(transformers, f"{name.removesuffix('Encoder')}Config")(
        **{**LAYERS, **settings}
    )
    return getattr(transformers, f"{name}Model")(config).eval()


def decoder(name: str, pooling: str = "lasttoken", **settings: Any) -> Callable[[Path], Path]:
    """A builder of a model whose attention is causal, padded on the left, with its end token at the
    end.
    """

    def build(folder: Path) -> Path:
        layers = {
            "num_key_value_heads": 2,
            "head_dim": 8,
            "bos_token_id": 5,
            "eos_token_id": 6,
            "pad_token_id": 0,
        }
        words = tokenizer("$A </s>", padding_side="left")
        return save(folder, of(name, **{**layers, **settings}), words, pooling)

    return build


def encoder(name: str, pooling: str = "mean", **settings: Any) -> Callable[[Path], Path]:
    """A builder of a model that sees all of a text."""
    return lambda folder: save(folder, of(name, **settings), None, pooling)


def static(folder: Path) -> Path:
    """A table of token vectors, without a transformer."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    torch.manual_seed(1)
    weights = torch.randn(ROWS, WIDTH)
    module = StaticEmbedding(tokenizer().backend_tokenizer, embedding_weights=weights)
    SentenceTransformer(modules=[module], device="cpu").save(str(folder / "model"))
    return folder / "model"


def dense(folder: Path) -> Path:
    """BERT with a Dense layer behind it."""
    import torch
    from sentence_transformers.base.modules import Dense

    torch.manual_seed(1)
    return save(folder, of("Bert"), None, "mean", Dense(WIDTH, 8))


def router(folder: Path) -> Path:
    """Another BERT for queries than for documents."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sentence_transformer.modules import Pooling

    query = [backbone(folder / "query", of("Bert"), words("Bert")), Pooling(WIDTH, "mean")]
    document = [backbone(folder / "document", of("Roberta")), Pooling(WIDTH, "cls")]
    both = Router.for_query_document(query, document)
    SentenceTransformer(modules=[both], device="cpu").save(str(folder / "model"))
    return folder / "model"


def asym(folder: Path) -> Path:
    """BERT with another Dense layer for queries than for documents, as sentence-transformers 2 to 4
    saved it.
    """
    import torch
    from sentence_transformers.base.modules import Dense, Router

    torch.manual_seed(1)
    routes = Router({"query": [Dense(WIDTH, 8)], "doc": [Dense(WIDTH, 8)]}, default_route="query")
    path = save(folder, of("Bert"), None, "mean", routes)
    (place,) = path.glob("*_Router")
    saved = json.loads((place / "router_config.json").read_text())
    (place / "router_config.json").unlink()
    change(place / "config.json", **saved | {"parameters": {"allow_empty_key": True}})
    modules = (path / "modules.json").read_text()
    kind = "sentence_transformers.base.modules.router.Router"
    assert kind in modules, modules
    (path / "modules.json").write_text(modules.replace(kind, "sentence_transformers.models.Asym"))
    return path


def with_code(folder: Path, code: str, name: str = "Bert") -> Path:
    """A model that brings the class `Own` in a file of its own, for a model type that transformers
    knows as well.
    """
    path = decoder(name)(folder) if name == "Qwen2" else bert(folder)
    change(
        path / "config.json",
        auto_map={"AutoModel": "modeling_own.Own"},
        transformers_version="4.41.2",
    )
    (path / "modeling_own.py").write_text(code)
    return path


NEGATIVE = """
from transformers import BertModel


class Own(BertModel):
    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.last_hidden_state = -out.last_hidden_state
        return out
"""
"""Code under which all vectors have the other sign."""

UNSAVED_BUFFER = """
import torch
from transformers import BertModel


class Own(BertModel):
    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.register_buffer("scale", torch.full((32,), 2.0), persistent=False)

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.last_hidden_state = out.last_hidden_state * self.scale
        return out
"""
"""Code with a number that is not saved with the weights, as much code of 2023 has (positions,
rotary angles)."""

ALWAYS_CAUSAL = """
import copy

from transformers import Qwen2Model


class Own(Qwen2Model):
    def __init__(self, config):
        config = copy.deepcopy(config)
        config.is_causal = True
        super().__init__(config)
"""
"""Code that does not look at `is_causal`."""

QODO_ATTENTION = """
from transformers import Qwen2Model as Base
from transformers.modeling_attn_mask_utils import _prepare_4d_attention_mask


class Qwen2Model(Base):
    def __init__(self, config):
        self.base = config.rope_theta
        super().__init__(config)

    def _update_causal_mask(self, attention_mask, input_tensor, *others, **named):
        return _prepare_4d_attention_mask(attention_mask, input_tensor.dtype)
"""
"""Code of 2024, as transformers 4.49 runs it: a token sees those behind it as well."""

QODO_TOKENS = """
from tokenizers.processors import TemplateProcessing
from transformers import Qwen2TokenizerFast as Base


class Qwen2TokenizerFast(Base):
    def __init__(self, *given, add_eos_token=False, **named):
        super().__init__(*given, **named)
        end = self.eos_token
        if add_eos_token:
            self._tokenizer.post_processor = TemplateProcessing(
                single=f"$A {end}", special_tokens=[(end, self.eos_token_id)]
            )
"""
"""Code of 2024 that puts an end token behind each text."""


def qodo(folder: Path) -> Path:
    """The folder of Qodo-Embed-1-1.5B in the small, the same under any version of the libraries.

    Qwen2, its attention and its end token in code of 2024, the last token's vector.
    """
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    path, end = folder / "model", "<|endoftext|>"
    (path / "1_Pooling").mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words: Any = Tokenizer(models.BPE({word: at for at, word in enumerate(alphabet)}, []))
    words.normalizer = normalizers.NFC()
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.add_special_tokens([end])
    words.save(str(path / "tokenizer.json"))
    auto_map: dict[str, Any] = {"AutoTokenizer": [None, "tokenization_qwen.Qwen2TokenizerFast"]}
    settings = {"model_max_length": LENGTH, "padding_side": "left", "add_eos_token": True}
    settings |= {"eos_token": end, "pad_token": end, "tokenizer_class": "Qwen2Tokenizer"}
    change(path / "tokenizer_config.json", auto_map=auto_map, **settings)
    auto_map = {"AutoModel": "Qwen2Model", "AutoModelForCausalLM": "Qwen2ForCausalLM"}
    auto_map = {key: f"modeling_qwen.{name}" for key, name in auto_map.items()}
    saved = {"model_type": "qwen2", "transformers_version": "4.41.2", "rope_theta": 1000000.0}
    layers = {**LAYERS, "num_key_value_heads": 2, "vocab_size": 257}
    change(path / "config.json", auto_map=auto_map, **saved, **layers)
    (path / "modeling_qwen.py").write_text(QODO_ATTENTION)
    (path / "tokenization_qwen.py").write_text(QODO_TOKENS)
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [
        {"name": kind, "path": at, "type": f"sentence_transformers.models.{kind}"}
        for at, kind in kinds.items()
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    modes = {"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}
    change(path / "1_Pooling" / "config.json", word_embedding_dimension=WIDTH, **modes)
    numbers = np.random.default_rng(1)
    shapes = {name: each.shape for name, each in of("Qwen2", **layers).state_dict().items()}
    weights = {name: numbers.normal(0, 0.2, shapes[name]) for name in sorted(shapes)}
    weights = {name: values.astype(np.float32) for name, values in weights.items()}
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path
