"""The model that is loaded is the model that is described: a table of kinds, equal to plain
`encode` or refused.
"""

import functools
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest
import yaml

import modelkinds as kinds
from chunkvisor.config.load import from_values
from chunkvisor.config.model import encode_spec
from chunkvisor.engine.modelfolder import check_model_files
from chunkvisor.engine.modelsource import ModelSource
from chunkvisor.errors import Halt
from chunkvisor.sentence_transformers import SentenceTransformer
from chunkvisor_worker.contract.messages import Limits, Loaded, ModelSpec, Phase
from chunkvisor_worker.contract.taxonomy import diagnose
from chunkvisor_worker.faults import fault_of
from chunkvisor_worker.lengths import TokenCounter
from chunkvisor_worker.model import LoadLog, load_model
from chunkvisor_worker.sentence_transformer import SentenceTransformerEncoder
from chunkvisor_worker.tokenizer import WrongModelError
from harness import ROOT, Workplace, halts

pytestmark = pytest.mark.model

TEXTS = [
    "fix: close the file",
    "",
    "word " * 60,
    "Ünïcödé naïve 漢字",
    "a\x00b",
    "fix: close the file",
]
Build = Callable[[Path], Path]


def encoded(
    path: Path, model: dict[str, Any], encode: dict[str, Any]
) -> tuple[npt.NDArray[np.float32], Loaded]:
    """The vectors as a run makes them, by the checks of the parent and the worker; and what was
    loaded.
    """
    values = {
        "workdir": "w",
        "model": {"name": str(path), **model},
        "encode": encode,
        "outputs": {"out": {"source": "s.txt"}},
    }
    config = from_values(values, path)
    check_model_files(config, str(path))
    spec = ModelSource(str(path), None).spec(config.model)
    worker = SentenceTransformerEncoder(spec, "cpu")
    worker.encode_spec = encode_spec(config.effective_encode("out"))
    progress = Mock(leaving=False, known_peak_flop_per_s=0.0)
    worker.load(progress)
    worker.tokenize(TEXTS, progress)
    worker.start(progress)
    limits = Limits(1 if encode.get("batch_size") == 1 else 3, tokens=400)
    parts = list(worker.encode(limits, progress))
    vectors = np.empty((len(TEXTS), parts[0][1].shape[1]), dtype=np.float32)
    for rows, block in parts:
        vectors[rows] = block
    loaded = worker.facts().loaded
    assert loaded is not None
    return vectors, loaded


def plain(path: Path, model: dict[str, Any], **encode: Any) -> Any:
    """The vectors of `SentenceTransformer.encode`, one text at a time."""
    from sentence_transformers import SentenceTransformer

    kwargs = dict(model.get("kwargs", {}))
    trust = model.get("trust_remote_code") is True
    library = SentenceTransformer(str(path), device="cpu", trust_remote_code=trust, **kwargs)
    return library.encode(TEXTS, batch_size=1, show_progress_bar=False, **encode)


of_prompts = functools.partial(
    kinds.bert, prompts={"query": "look for: "}, default_prompt_name="query"
)
with_truncate_dim = functools.partial(kinds.bert, truncate_dim=8)


def with_negative_code(folder: Path) -> Path:
    """A model whose own code turns the sign of its vectors."""
    return kinds.with_code(folder, kinds.NEGATIVE)


def with_left_over(build: Build, *names: str) -> Build:
    """A builder of a model whose weights file has more than it needs."""

    def builder(folder: Path) -> Path:
        import torch
        from safetensors.torch import load_file, save_file

        path = build(folder)
        weights = load_file(path / "model.safetensors")
        weights |= {name: torch.ones(kinds.WIDTH) for name in names}
        save_file(weights, path / "model.safetensors", {"format": "pt"})
        return path

    return builder


def of_words(words: Sequence[str], folder: Path) -> Path:
    """A model whose vocabulary has these words and no other."""
    from transformers import BertTokenizer

    ids = {word: number for number, word in enumerate([*kinds.SPECIAL[:5], *words])}
    return kinds.save(folder, kinds.of("Bert"), BertTokenizer(vocab=ids, do_lower_case=False))


def reading(build: Build, length: int) -> Build:
    """A builder of a model that says it reads so many tokens of a text."""
    return kinds.configured(build, "sentence_bert_config.json", max_seq_length=length)


MODERN: dict[str, Any] = {
    "local_attention": 16,
    "pad_token_id": 0,
    "bos_token_id": 5,
    "eos_token_id": 6,
}
MODERN |= {"cls_token_id": 2, "sep_token_id": 3, "global_attn_every_n_layers": 2}
t5 = kinds.encoder("T5Encoder", **kinds.T5)
gpt2 = kinds.encoder("GPT2", pad_token_id=0, bos_token_id=5, eos_token_id=6)
mistral = kinds.decoder("Mistral")
PEGASUS: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "encoder_ffn_dim": 64,
    "block_size": 8,
}
PEGASUS |= {"encoder_attention_heads": 4, "decoder_layers": 1, "decoder_attention_heads": 4}
pegasus = kinds.encoder("PegasusX", num_global_tokens=32, **PEGASUS)
fewer_layers: dict[str, Any] = {"kwargs": {"config_kwargs": {"num_hidden_layers": 1}}}

UNUSED: dict[str, Build] = {
    "BERT's heads": with_left_over(kinds.bert, "cls.bias", "bert.pooler.other", "classifier.bias"),
    "BERT's positions": with_left_over(kinds.bert, "bert.embeddings.position_ids"),
    "T5's decoder": with_left_over(t5, "decoder.block.0.layer.0.SelfAttention.q.weight"),
    "GPT-2's masks": with_left_over(gpt2, "h.0.attn.bias", "transformer.h.1.attn.masked_bias"),
    "rotary frequencies": with_left_over(mistral, "layers.0.self_attn.rotary_emb.inv_freq"),
}
"""Weights files with more than the backbone needs: heads, and what older versions saved besides."""

EQUAL: dict[str, tuple[Any, ...]] = {
    # kind: (builder, section model, section encode, the same for plain encode); what is left out is
    # empty
    "BERT": (kinds.bert,),
    "RoBERTa": (kinds.encoder("Roberta"),),
    "ModernBERT": (kinds.encoder("ModernBert", **MODERN),),
    "Qwen2": (kinds.decoder("Qwen2"),),
    "Qwen2, is_causal: false": (kinds.decoder("Qwen2", "mean", is_causal=False),),
    "EmbeddingGemma": (kinds.decoder("Gemma3Text", "mean", use_bidirectional_attention=True),),
    "T5": (t5,),
    "static": (kinds.static,),
    "Dense": (kinds.dense,),
    "default prompt": (of_prompts,),
    "task: query": (of_prompts, {}, {"task": "query"}, {"prompt_name": "query"}),
    "task: document": (of_prompts, {}, {"task": "document"}, {"prompt": ""}),
    "truncate_dim saved, another asked for": (
        with_truncate_dim,
        {},
        {"truncate_dim": 16},
        {"truncate_dim": 16},
    ),
    "Router, query": (kinds.router, {}, {"task": "query"}, {"task": "query"}),
    "Asym, route": (kinds.asym, {}, {"kwargs": {"task": "doc"}}, {"task": "doc"}),
    "code, trusted": (with_negative_code, {"trust_remote_code": True}),
    "code, left out on purpose": (with_negative_code, {"trust_remote_code": False}),
    **{kind: (build,) for kind, build in UNUSED.items()},
    "more tokens than rotary positions": (reading(mistral, 200),),
    "more tokens than rows of another table": (reading(pegasus, 100),),
    "fewer layers on purpose": (kinds.bert, fewer_layers),
    "proteins": (functools.partial(of_words, "LAGVSERTIDPKQNFYMHWC"),),
    "DNA": (functools.partial(of_words, ["ACG", "CGT", "GTA", "TAC"]),),
    "molecules": (functools.partial(of_words, ["C", "c", "(", ")", "=", "O", "1"]),),
    "a large table": (kinds.encoder("Bert", vocab_size=3 * kinds.ROWS),),
    "null settings": (
        kinds.decoder("Qwen2"),
        {"kwargs": {"config_kwargs": {"sliding_window": None}, "processor_kwargs": None}},
    ),
}


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_to_plain_encode(kind: str, tmp_path: Path) -> None:
    """A kind that is loaded as its files describe has the vectors of `SentenceTransformer.encode`."""
    build, model, encode, same = (*EQUAL[kind], {}, {}, {})[:4]
    path = build(tmp_path)

    vectors, _ = encoded(path, model, encode)

    expected = plain(path, model, **same)
    assert vectors.shape == expected.shape
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


def together(*parts: dict[str, Any]) -> dict[str, Any]:
    """Normalizers or pre-tokenizers, one after the other."""
    key = "normalizers" if parts[-1]["type"] in ("NFC", "Replace") else "pretokenizers"
    return {"type": "Sequence", key: list(parts)}


def around(token: str, number: int) -> dict[str, Any]:
    """A post-processor that puts this token before a text."""
    parts = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    tokens = {token: {"id": token, "ids": [number], "tokens": [token]}}
    return {"type": "TemplateProcessing", "single": parts, "pair": parts, "special_tokens": tokens}


of_class, configured = kinds.of_class, kinds.configured
LOWER = {"type": "Lowercase"}
DIGITS = {"type": "Digits", "individual_digits": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
WITHOUT_PREFIX = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True}
OLD_LLAMA = together(
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
)
FLAGS = {"special": False, "normalized": True, "single_word": False, "lstrip": False}
WORD = {**FLAGS, "rstrip": False, "id": 142, "content": "foxab"}
KNOWN = {"0": {**FLAGS, "rstrip": False, "content": "[PAD]", "special": True}}
LOWER_QWEN2 = of_class("Qwen2", normalizer=together(LOWER, {"type": "NFC"}))
LLAMA = functools.partial(of_class, "Llama", post_processor=around("<s>", 1))
GEMMA = functools.partial(of_class, "Gemma", post_processor=around("<bos>", 2))
SAID = "Fox  É ﬁ 12\nFoxab"

TOKENIZERS: dict[str, tuple[Build, str, bool]] = {
    # kind: (builder, the tokens of SAID under transformers 4.49, whether 5.23 alone gives others)
    "BERT": (of_class("Bert"), "[CLS] fox e ﬁ 12 fox ##a ##b [SEP]", False),
    "BERT, cased": (
        configured(of_class("Bert"), do_lower_case=False),
        "[CLS] Fox É ﬁ 12 Fox ##a ##b [SEP]",
        False,
    ),
    "BERT, NFKC": (
        of_class("Bert", normalizer={"type": "NFKC"}),
        "[CLS] Fox É f ##i 12 Fox ##a ##b [SEP]",
        True,
    ),
    "BERT, other ends": (
        of_class("Bert", post_processor=around("[PAD]", 0)),
        "[PAD] fox e ﬁ 12 fox ##a ##b",
        True,
    ),
    "BERT, a word": (
        configured(of_class("Bert", added_tokens=[WORD]), added_tokens_decoder=KNOWN),
        "[CLS] fox e ﬁ 12 foxab [SEP]",
        True,
    ),
    "RoBERTa": (of_class("Roberta"), "<s> Fox Ġ Ġ Ã ī Ġ ï ¬ ģ Ġ 12 Ċ Fox a b </s>", False),
    "RoBERTa, lower": (
        of_class("Roberta", normalizer=LOWER),
        "<s> fox Ġ Ġ Ã © Ġ ï ¬ ģ Ġ 12 Ċ fox a b </s>",
        True,
    ),
    "XLM-R": (of_class("XLMRoberta"), "<s> ▁ Fox ▁ É ▁ ﬁ ▁ 12 ▁ Fox a b </s>", False),
    "XLM-R, no prefix": (
        of_class("XLMRoberta", pre_tokenizer=WITHOUT_PREFIX),
        "<s> Fox ▁ ▁ É ▁ ﬁ ▁ 12 <unk> Fox a b </s>",
        True,
    ),
    "GPT-2": (of_class("GPT2"), "Fox Ġ Ġ Ã ī Ġ ï ¬ ģ Ġ 12 Ċ Fox a b", False),
    "GPT-2, a space": (
        configured(of_class("GPT2"), add_prefix_space=True),
        "Ġ Fox Ġ Ġ Ã ī Ġ ï ¬ ģ Ġ 12 Ċ Fox a b",
        False,
    ),
    "GPT-2, digits": (
        of_class("GPT2", pre_tokenizer=together(DIGITS, BYTES)),
        "Fox Ġ Ġ Ã ī Ġ ï ¬ ģ Ġ 1 2 Ċ Fox a b",
        True,
    ),
    "Qwen2": (of_class("Qwen2"), "Fox Ġ Ġ Ã ī Ġ ï ¬ ģ Ġ 1 2 Ċ Fox a b", False),
    "Qwen2, lower": (LOWER_QWEN2, "fox Ġ Ġ Ã © Ġ ï ¬ ģ Ġ 1 2 Ċ fox a b", True),
    "Qwen2, lower, no class": (
        configured(LOWER_QWEN2, tokenizer_class="PreTrainedTokenizerFast"),
        "fox Ġ Ġ Ã © Ġ ï ¬ ģ Ġ 1 2 Ċ fox a b",
        True,
    ),
    "T5": (of_class("T5", "T5Encoder"), "▁ Fox ▁ É ▁ ﬁ ▁ 12 ▁ Fox a b </s>", False),
    "T5, digits": (
        of_class("T5", "T5Encoder", pre_tokenizer=DIGITS),
        "Fox <unk> É <unk> ﬁ <unk> 1 2 <unk> Fox a b </s>",
        True,
    ),
    "Llama": (LLAMA(), "<s> ▁ Fox ▁ ▁ É ▁ ﬁ ▁ 12 <0x0A> Fox a b", False),
    "Llama of before": (
        LLAMA(normalizer=OLD_LLAMA, pre_tokenizer=None),
        "<s> ▁ Fox ▁ ▁ É ▁ ﬁ ▁ 12 <0x0A> Fox a b",
        True,
    ),
    "Gemma": (GEMMA(), "<bos> Fox ▁ ▁ É ▁ ﬁ ▁ 12 <0x0A> Fox a b", False),
    "Gemma, lower": (
        GEMMA(normalizer=LOWER),
        "<bos> fox <0x20> <0x20> é <0x20> ﬁ <0x20> 12 <0x0A> fox a b",
        True,
    ),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_tokenizer_is_that_of_the_file(kind: str, tmp_path: Path) -> None:
    """A folder's tokenizer.json decides the tokens in a run, a plan and the class that stands in
    for sentence-transformers' own, with a note if the library drops it.
    """
    build, tokens, changed = TOKENIZERS[kind]
    path, load_log = build(tmp_path), LoadLog()
    spec = ModelSpec(str(path), path=str(path))

    model = load_model(spec, "cpu", load_log)

    ours = SentenceTransformer(str(path), device="cpu")
    for each in (model.tokenizer, TokenCounter(spec, path).tokenizer, ours.tokenizer):
        assert " ".join(each.convert_ids_to_tokens(each(SAID)["input_ids"])) == tokens
    assert ["which is used" in note for note in load_log.notes] == [True] * changed, load_log.notes


def test_the_other_end_is_kept(tmp_path: Path) -> None:
    """If only an end token is asked for, the first token of tokenizer.json stays, as in
    transformers 4.
    """
    path = LLAMA()(tmp_path)
    kwargs = {"processor_kwargs": {"add_eos_token": True}}
    model = load_model(ModelSpec(str(path), path=str(path), kwargs=kwargs), "cpu", LoadLog())
    tokens = model.tokenizer.convert_ids_to_tokens(model.tokenizer("fox")["input_ids"])
    assert " ".join(tokens) == "<s> ▁ fox </s>"


def test_vectors_are_those_of_the_files_tokenizer(tmp_path: Path) -> None:
    """Each module has the tokenizer.json of its own folder: a Router's route, and a Transformer in
    a subfolder.
    """
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedTokenizerFast

    digits = of_class("Bert", pre_tokenizer=DIGITS)(tmp_path / "a")
    path = tmp_path / "moved"
    place = path / "0_Transformer"
    shutil.copytree(digits, place)
    shutil.move(place / "1_Pooling", path)
    shutil.move(place / "modules.json", path)
    modules = json.loads((path / "modules.json").read_text())
    modules[0]["path"] = place.name
    (path / "modules.json").write_text(json.dumps(modules))
    library = SentenceTransformer(str(path), device="cpu")
    library[0].processor = PreTrainedTokenizerFast.from_pretrained(place)
    vectors, _ = encoded(path, {}, {})
    expected = library.encode(TEXTS, batch_size=1, show_progress_bar=False)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)

    path = kinds.router(tmp_path / "b")
    place = path / "query_0_Transformer"
    shutil.copy(digits / "tokenizer.json", place)
    library = SentenceTransformer(str(path), device="cpu")
    library[0].sub_modules["query"][0].processor = PreTrainedTokenizerFast.from_pretrained(place)
    vectors, loaded = encoded(path, {}, {"task": "query"})
    expected = library.encode_query(TEXTS, batch_size=1, show_progress_bar=False)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    assert any("which is used" in note for note in loaded.notes)


def without_modules(folder: Path) -> Path:
    """A model of transformers alone."""
    path = kinds.bert(folder)
    (path / "modules.json").unlink()
    return path


def with_renamed_weights(folder: Path) -> Path:
    """Weights with the prefix that torch's DataParallel leaves."""
    from safetensors.torch import load_file, save_file

    path = kinds.bert(folder)
    weights = {
        f"module.{name}": value for name, value in load_file(path / "model.safetensors").items()
    }
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


def without_first_token(folder: Path) -> Path:
    """A model whose tokenizer is to begin each text with a token, and does not."""
    qwen2 = kinds.of("Qwen2", num_key_value_heads=2)
    path = kinds.save(folder, qwen2, kinds.tokenizer("$A"), "lasttoken")
    kinds.change(path / "tokenizer_config.json", add_bos_token=True)
    return path


def without_pad(name: str) -> Build:
    """A builder of a model whose files name no pad token."""
    return kinds.configured(kinds.decoder(name), pad_token=None)


def blind_to_is_causal(folder: Path) -> Path:
    """A causal model of a class that does not know `is_causal`, whose config.json asks for the
    other attention.
    """
    path = kinds.with_code(folder, kinds.ALWAYS_CAUSAL, "Qwen2")
    kinds.change(path / "config.json", is_causal=False)
    return path


def without_tokenizer(name: str) -> Build:
    """A builder of a model whose folder lacks tokenizer.json."""

    def build(folder: Path) -> Path:
        path = kinds.of_class(name)(folder)
        (path / "tokenizer.json").unlink()
        return path

    return build


TO_THE_RIGHT = {"kwargs": {"processor_kwargs": {"padding_side": "right"}}}
SAYS_CLASS = "config_sentence_transformers.json"
REFUSED: dict[str, tuple[Build, dict[str, Any], str]] = {
    # kind: (builder, section model, words of the message, in this order)
    "sparse": (
        kinds.configured(kinds.bert, SAYS_CLASS, model_type="SparseEncoder"),
        {},
        "class SparseEncoder.*config_sentence_transformers.json.*plug-in",
    ),
    "no modules.json": (without_modules, {}, "no modules.json.*make up a pooling.*model.pooling"),
    "pooling twice": (kinds.bert, {"pooling": "cls"}, "model.pooling is cls.*modules.json"),
    "code, undecided": (
        with_negative_code,
        {},
        r"modeling_own\.py.*config\.json.*`model\.trust_remote_code: true`",
    ),
    "code with an unsaved buffer": (
        lambda folder: kinds.with_code(folder, kinds.UNSAVED_BUFFER),
        {"trust_remote_code": True},
        r"leaves empty: scale.*written by version 4\.41\.2.*transformers==4\.49\.0 ",
    ),
    "activation from outside": (
        kinds.configured(
            kinds.dense, "2_Dense/config.json", activation_function="own.activations.Wave"
        ),
        {},
        "activation own.activations.Wave.*2_Dense/config.json.*Tanh.*trust_remote_code",
    ),
    "weights renamed": (
        with_renamed_weights,
        {},
        r"drawn at random: .*Download the model again.*of other names: module\.",
    ),
    "more layers": (
        with_left_over(mistral, "model.layers.2.mlp.up_proj.weight", "layers.3.mlp.up_proj.weight"),
        {},
        r"layers are .* not used: layers\.3\.mlp.*, model\.layers\.2\.mlp.*config\.json",
    ),
    "relative positions": (
        with_left_over(kinds.bert, "bert.encoder.layer.0.attention.self.distance_embedding.weight"),
        {},
        r"layers are .* not used: bert\.encoder\.layer\.0\.attention\.self\.distance_embedding",
    ),
    "a bias of a layer without": (
        with_left_over(mistral, "model.layers.0.mlp.up_proj.bias"),
        {},
        "not used: .*up_proj.bias",
    ),
    "no first token": (without_first_token, {}, "add_bos_token.*<s> first"),
    "config_kwargs without effect": (
        kinds.decoder("Qwen2"),
        {"kwargs": {"config_kwargs": {"is_casual": False}}},
        "is_casual: false.*no effect.*config.json",
    ),
    "is_causal without effect": (
        blind_to_is_causal,
        {"trust_remote_code": True},
        "is_causal: false.*before it",
    ),
    "no pad token": (without_pad("Mistral"), {}, "no pad token.*pad_token"),
    "made-up pad token": (
        without_pad("Qwen2"),
        {},
        "pad token <.endoftext.> has the id 263.*263 rows.*pad_token",
    ),
    "no vocabulary, BERT": (
        without_tokenizer("Bert"),
        {},
        r"\(BertTokenizer, 5 tokens\) has special tokens and no words.*tokenizer\.json.*Download",
    ),
    "no vocabulary, Qwen2": (
        without_tokenizer("Qwen2"),
        {},
        "special tokens and no words.*Download",
    ),
    "one token more": (
        kinds.encoder("Bert", vocab_size=kinds.ROWS - 1),
        {},
        r"263 tokens.*more tokens.*rows \(262\)",
    ),
    "tokenizer of another model": (
        kinds.encoder("Bert", vocab_size=kinds.ROWS // 2),
        {},
        r"263 tokens.*rows \(131\).*another model",
    ),
    "RoBERTa beyond its positions": (
        reading(kinds.encoder("Roberta"), 127),
        {},
        "127 tokens.*positions for 126.*model.max_length to 126",
    ),
    "GPT-2 beyond its positions": (reading(gpt2, 129), {}, "129 tokens.*positions for 128"),
    "OPT beyond its positions": (
        reading(kinds.encoder("OPT", word_embed_proj_dim=32), 129),
        {},
        "129 tokens.*positions for 128",
    ),
    "BERT without a limit": (reading(kinds.bert, 10**30), {}, "any number of tokens.*for 128"),
    "Router, undecided": (
        kinds.router,
        {},
        "query, document.*router_config.json.*encode.task: query or encode.task: document",
    ),
    "Asym, undecided": (
        kinds.asym,
        {},
        "query, doc.*2_Router/config.json.*encode.task: query or encode.kwargs: {task: doc}",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str, tmp_path: Path) -> None:
    """A kind that would be loaded as another model is refused with 78, by words that lead on."""
    build, model, words = REFUSED[kind]
    path = build(tmp_path)

    with pytest.raises((Halt, WrongModelError)) as caught:
        encoded(path, model, {})

    error = caught.value
    assert re.search(words, " ".join(str(error).split())), str(error)
    if isinstance(error, Halt):
        assert error.code == 78
    else:
        assert diagnose(fault_of(error, Phase.MODEL_LOAD)).rule.name == "wrong-model"


def offered(message: str) -> list[dict[str, Any]]:
    """The keys of a config in a message, without the section's name."""
    return [yaml.safe_load(line) for line in re.findall(r"`\w+\.(\w+: .+?)`", message)]


padded_left = functools.partial(kinds.configured, padding_side="left")

PADDING: dict[str, tuple[Build, dict[str, Any], dict[str, Any] | None]] = {
    # kind: (builder, section encode, the section model that mends it; none = batch_size 1 does)
    "GPT-2, left": (padded_left(gpt2), {}, TO_THE_RIGHT),
    "BERT, left": (padded_left(kinds.bert), {}, TO_THE_RIGHT),
    "by the library": (padded_left(kinds.bert), {"kwargs": {"task": "own"}}, TO_THE_RIGHT),
    "RoBERTa, left": (padded_left(kinds.encoder("Roberta")), {}, TO_THE_RIGHT),
    "FNet": (kinds.encoder("FNet"), {}, None),
    "Nystroemformer": (kinds.encoder("Nystromformer"), {}, None),
    "ConvBERT": (kinds.encoder("ConvBert", embedding_size=32), {}, None),
}


@pytest.mark.parametrize("kind", PADDING)
def test_padding(kind: str, tmp_path: Path) -> None:
    """Vectors that depend on the neighbors are refused, and what the message offers gives those of
    the texts alone.
    """
    build, encode, mends = PADDING[kind]
    path = build(tmp_path)
    with pytest.raises(
        WrongModelError, match=r"pads on the .* attention or its positions"
    ) as refused:
        encoded(path, {}, encode)
    (line,) = offered(str(refused.value))
    model, one = (line, {}) if mends else ({}, line)
    assert model == (mends or {})
    vectors, _ = encoded(path, model, {**encode, **one})
    np.testing.assert_allclose(vectors, plain(path, {}), rtol=0, atol=1e-5)


def test_what_transformers_4_says_of_weights() -> None:
    """The names of weights are understood from the messages of the versions that the mission's
    model may need.
    """
    load_log, some = LoadLog(), "Some weights of"
    load_log.add_message(
        f"{some} the model checkpoint at m were not used when initializing B: ['cls.a']\n- ..."
    )
    load_log.add_message(
        f"{some} B were not initialized from m and are newly initialized: ['b.c', 'd']\nYou"
    )
    assert (load_log.left_over, load_log.made_up, load_log.notes) == (["cls.a"], ["b.c", "d"], [])


def test_pooling_of_a_model_without_modules(tmp_path: Path) -> None:
    """`model.pooling` pools as that module of sentence-transformers does."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    path = without_modules(tmp_path)
    library = SentenceTransformer(
        modules=[Transformer(str(path)), Pooling(kinds.WIDTH, "lasttoken")], device="cpu"
    )

    vectors, loaded = encoded(path, {"pooling": "lasttoken"}, {})

    expected = library.encode(TEXTS, batch_size=1, show_progress_bar=False)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    assert loaded.pooling == "lasttoken"


def test_what_was_loaded_is_told(tmp_path: Path) -> None:
    """The facts have each module's class, the prompt in effect, the attention, the padding and what
    was warned of.
    """
    # The library warns of a default prompt once in a process: its name is that of no other test.
    path = kinds.bert(tmp_path / "a", prompts={"mine": "look for: "})
    kinds.change(path / SAYS_CLASS, default_prompt_name="mine")
    _, loaded = encoded(path, {}, {})
    assert loaded.modules == ("Transformer (BertModel)", "Pooling")
    assert (loaded.pooling, loaded.causal, loaded.padding_side) == ("mean", False, "right")
    assert loaded.prompt == "look for: "
    assert loaded.probe_ids[0] == 2
    assert loaded.probe_ids[-1] == 3
    assert any("Default prompt name is set to 'mine'" in note for note in loaded.notes)

    _, loaded = encoded(kinds.decoder("Qwen2")(tmp_path / "b"), {}, {})
    assert (loaded.pooling, loaded.causal, loaded.padding_side) == ("lasttoken", True, "left")

    _, loaded = encoded(kinds.router(tmp_path / "d"), {}, {"task": "query"})
    query, document = (
        "query: Transformer (BertModel), Pooling",
        "document: Transformer (RobertaModel), Pooling",
    )
    assert loaded.modules == (f"Router ({query}; {document})",)
    assert loaded.pooling == "mean, cls"

    _, loaded = encoded(UNUSED["BERT's heads"](tmp_path / "c"), {}, {})
    assert any("does not use: bert.pooler.other, classifier.bias" in note for note in loaded.notes)


OF_4_49 = """
    0.007153 0.144606 0.279511 0.102596 -0.017930 0.267639 0.135181 0.229921
    0.019226 -0.029533 0.096394 0.178697 -0.059627 0.014628 0.154039 0.222248
    -0.003204 0.128049 0.355429 0.095205 -0.011664 0.319465 0.038808 0.274079
    -0.005355 0.170298 0.332617 0.135972 -0.031222 0.258897 -0.006489 0.246900
    -0.000335 0.046794 0.182472 0.097700 -0.034492 0.179333 0.244227 0.270041
    0.007153 0.144606 0.279511 0.102596 -0.017930 0.267639 0.135181 0.229921
"""
"""The first 8 dimensions of TEXTS, by sentence-transformers 3.4.1 and transformers 4.49.0 with the
folder's code."""


def test_the_missions_own_model(tmp_path: Path) -> None:
    """Each way that the messages for Qodo-Embed's kind of folder offer leads to its author's
    vectors, as printed.
    """
    path = kinds.qodo(tmp_path)
    with pytest.raises(Halt, match=r"modeling_qwen\.py, tokenization_qwen\.py") as undecided:
        encoded(path, {}, {})
    run_it, leave_out, kwargs = offered(undecided.value.remedy)
    lines = re.findall(r"`model\.(.+?)`", undecided.value.remedy)[1:]
    for page in ("README.md", "configs/qodo_tc_commit.yaml", "docs/reference/right-vectors.md"):
        text = (ROOT / page).read_text()
        assert all(line in text for line in lines), page

    with pytest.raises(WrongModelError, match="does not run under") as outdated:
        encoded(path, run_it, {})
    for message in (undecided.value.remedy, str(outdated.value)):
        assert "pip install transformers==4.49.0 sentence-transformers==5.7.0" in message
    assert kwargs in offered(str(outdated.value))

    for half in ({}, *({key: value} for key, value in kwargs["kwargs"].items())):
        with pytest.raises(WrongModelError) as refused:
            encoded(path, {**leave_out, "kwargs": half}, {})
        assert kwargs in offered(str(refused.value))
    vectors, loaded = encoded(path, {**leave_out, **kwargs}, {})
    authors = np.array(OF_4_49.split(), dtype=np.float32).reshape(len(TEXTS), 8)
    np.testing.assert_allclose(vectors[:, :8], authors, rtol=0, atol=2e-6)
    assert (loaded.probe_ids[-1], loaded.causal) == (256, False)


PROMPTS: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    # case: (the model's prompts, section encode, words of the warning; none = there is none)
    "none chosen": ({"query": "q: "}, {}, "'query'.* none is put before the texts"),
    "none wanted": ({"query": "q: "}, {"prompt": ""}, ""),
    "chosen by task": ({"query": "q: "}, {"task": "query"}, ""),
    "chosen by name": ({"query": "q: "}, {"prompt_name": "query"}, ""),
    "an author's empty one": ({"query": "q: "}, {"prompt_name": "document"}, ""),
    "task without prompt": ({"mine": "m: "}, {"task": "query"}, "no route for the task.*'mine'"),
    "task without prompts": (
        {},
        {"task": "document"},
        "no route for the task.*leave encode.task out",
    ),
    "task of its own": ({}, {"kwargs": {"task": "doc"}}, "no route for the task"),
}


def doubts(path: Path, **sections: Any) -> str:
    """The warnings of the model's files."""
    values = {"workdir": "w", "outputs": {"out": {"source": "s.txt"}}, **sections}
    values["model"] = {"name": str(path), **sections.get("model", {})}
    found = check_model_files(from_values(values, path), str(path))
    return "; ".join(f"{what}; {mend}" for what, mend in found)


def test_a_pointer_of_git_lfs(tmp_path: Path) -> None:
    """One in the place of any file that is read is refused from the files; of weights nobody reads,
    it is not.
    """
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    for path in (kinds.dense(tmp_path / "a"), kinds.router(tmp_path / "b")):
        (path / "pytorch_model.bin").write_bytes(pointer)
        (path / "picture.png").write_bytes(pointer)
        (path / "model.safetensors").touch()
        doubts(path, encode={"task": "query"})
        read = [each for each in path.rglob("*") if each.suffix in (".json", ".safetensors")]
        assert len(read) > 8
        for file in read:
            content = file.read_bytes()
            file.write_bytes(pointer)
            with halts(78) as caught:
                doubts(path, encode={"task": "query"})
            assert str(file.relative_to(path)) in str(caught.value)
            assert "`git lfs pull`" in caught.value.remedy
            file.write_bytes(content)


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts_and_tasks(case: str, tmp_path: Path) -> None:
    """A warning names the model's prompts if none of them is chosen, or if the task changes
    nothing.
    """
    prompts, encode, words = PROMPTS[case]

    found = doubts(kinds.bert(tmp_path, prompts=prompts), encode=encode)

    assert re.search(words, found)
    assert bool(found) is bool(words)


@pytest.mark.parametrize(
    ("prompts", "sections", "words"),
    [
        ({}, {"encode": {"prompt_name": "query"}}, "no prompt 'query'.*has none"),
        ({"mine": ""}, {"encode": {"prompt_name": "document"}}, "no prompt 'document'.*'mine'"),
        ({}, {"model": {"kwargs": {"default_prompt_name": "query"}}}, "default_prompt_name.*none"),
    ],
)
def test_a_prompt_that_the_model_does_not_have(
    prompts: dict[str, str], sections: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Its name is refused with those there are; the empty ones of sentence-transformers do not
    count.
    """
    path = kinds.bert(tmp_path, prompts=prompts)
    with halts(78) as refused:
        doubts(path, **sections)
    assert re.search(words, str(refused.value).replace("\n", " "))
    assert not doubts(path, model={"kwargs": {"prompts": {"query": ""}}})


def test_a_task_without_a_route(tmp_path: Path) -> None:
    """A task that is none of an Asym's routes is refused before a worker would blame each text."""
    with pytest.raises(Halt, match=r"query, doc(.|\n)*encode.task is document"):
        doubts(kinds.asym(tmp_path), encode={"task": "document"})


@pytest.fixture
def job(workplace: Workplace) -> Workplace:
    """A job of twelve texts in three chunks, on the CPU."""
    workplace.write_source([f"text {number}" for number in range(12)])
    return workplace


def configure(job: Workplace, path: Path, **keys: Any) -> None:
    """Write its config for the model in that folder."""
    job.write_config(
        "sentence-transformers", model__name=str(path), chunk__size=4, device="cpu", **keys
    )


def test_plan_doctor_and_run_refuse_alike(job: Workplace, tmp_path: Path) -> None:
    """What the files show ends plan, doctor and run with 78 and the same words, before a worker is
    started.
    """
    configure(job, kinds.qodo(tmp_path))
    for command in ("plan", "doctor", "run"):
        said = job.does(command, code=78).words
        assert "brings Python code (modeling_qwen.py, tokenization_qwen.py)" in said
        assert "Then set `model.trust_remote_code: true`" in said
    assert not list(job.workdir.rglob("attempts/*"))


def test_the_first_worker_ends_the_run(job: Workplace, tmp_path: Path) -> None:
    """What only loading shows ends the run with 78 after one attempt; with the setting that it
    names it completes.
    """
    path = kinds.qodo(tmp_path)
    configure(job, path, model__trust_remote_code=False, workers__start="auto")

    ended = job.ends(78)
    kwargs = next(line for line in offered(ended.stderr) if "kwargs" in line)["kwargs"]
    assert "WrongModelError" not in ended.stderr  # a class of ours tells a person nothing
    assert sum(event["event"] == "attempt_failed" for event in job.events()) <= 1
    configure(job, path, model__trust_remote_code=False, model__kwargs=kwargs)
    job.ends(78)
    job.ends(0, "--from-scratch")


def test_a_dtype_that_overflows_is_named(job: Workplace, tmp_path: Path) -> None:
    """If float16 is too small for a model, the last words name the model, its dtype, and the dtype
    to take here.
    """
    path = kinds.encoder("Bert", initializer_range=1000.0)(tmp_path)
    configure(job, path, model__dtype="float16")
    said = job.ends(78).words
    assert f"{path} computes in float16" in said
    assert "set model.dtype to float32" in said

    configure(job, path, model__dtype="float32")
    job.ends(0, "--from-scratch")


@pytest.mark.parametrize("start", ["fresh", "warm"])
def test_padding_that_changes_vectors_ends_run_and_doctor(
    job: Workplace, tmp_path: Path, start: str
) -> None:
    """Both end with 78 and what mends it, before a text is encoded; batches of one text have no
    padding, and run.
    """
    path = padded_left(kinds.bert)(tmp_path)
    configure(job, path, workers__start=start)
    commands = ("doctor", "run") if start == "fresh" else ("run",)  # the doctor starts all alike
    for command in commands:
        ended = job.does(command, code=78)
        assert TO_THE_RIGHT in offered(ended.stdout + ended.stderr)
    assert sum(event["event"] == "attempt_failed" for event in job.events()) == 1

    configure(job, path, workers__start=start, encode__batch_size=1)
    for command in commands:
        job.does(command)


def test_what_the_libraries_say_is_said_once(job: Workplace, tmp_path: Path) -> None:
    """What is left out, and what the libraries warn of, is said once, and stands in the manifest."""
    path = with_negative_code(tmp_path)
    kinds.change(path / SAYS_CLASS, default_prompt_name="mine", prompts={"mine": "a: "})
    configure(job, path, model__trust_remote_code=False)

    ended = job.ends(0)
    assert (
        ended.stderr.count(
            "(modeling_own.py) is left out, because model.trust_remote_code is false"
        )
        == 1
    )
    assert ended.stderr.count("Default prompt name is set to 'mine'") == 1
    model = job.manifest()["model"]
    assert (model["trust_remote_code"], model["loaded"]["modules"][0]) == (
        False,
        "Transformer (BertModel)",
    )
    assert any("Default prompt name" in note for note in model["loaded"]["notes"])
