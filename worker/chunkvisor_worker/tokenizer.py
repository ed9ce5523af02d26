"""Makes sure that a tokenizer gives the ids that its folder describes, or refuses it.

transformers 5 builds a tokenizer by the class that tokenizer_config.json names, and takes only the
vocabulary from tokenizer.json: another normalizer, pre-tokenizer or post-processor is lost, and the
vectors are finite and wrong.
"""

import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chunkvisor_worker.contract.correctness import kwargs_without_code, numbers_of
from chunkvisor_worker.contract.files import read_json

# Texts of six languages; then digits, cases, accents, letters and spaces that a normalizer changes.
_SAMPLES = (
    "The quick brown fox jumps over the lazy dog.",
    "Москва является столицей России.",
    "床前明月光",
    "吾輩は猫である。",
    "모든 인간은 태어날 때부터 자유롭다.",
    "يولد جميع الناس أحرارا متساوين.",
    "It's 1234567890 and 3.14, or 20%: a1b2",
    "MiXeD Case, ÀÉÎÕÜ naïve Straße İstanbul",
    "e\u0301 Å ﬁ ½ x² \uff46\uff55\uff4c\uff4c ① … \u200bzero\xadsoft",
    "  two  spaces\tand\n\nlines \r\n of  code_like->text(); ",
    "MTLLNPQWYV ACGTTGCA CC(=O)Oc1ccccc1",
)
# Attributes of BertNormalizer and ByteLevel: for these, tokenizer_config.json or the class count,
# not tokenizer.json.
_FLAGS = ("lowercase", "strip_accents", "handle_chinese_chars", "add_prefix_space")
# Settings that ask for other tokens than those of tokenizer.json.
_ON_PURPOSE = ("add_prefix_space", "fix_mistral_regex", "legacy", "src_lang", "tokenizer_file")
# Keys of tokenizer_config.json: the token that each adds, its index among the ids, its place.
_ENDS = {"add_bos_token": ("bos", 0, "first"), "add_eos_token": ("eos", -1, "last")}


class WrongModelError(ValueError):
    """The loaded model is not the one that its files describe: its vectors would be wrong."""


def tokenizer_kwargs_of(*settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the arguments for a tokenizer that the mappings have; the last one wins.

    Their key depends on the version of sentence-transformers.
    """
    found = dict[str, Any]()
    for each in settings:
        for name in ("tokenizer_args", "tokenizer_kwargs", "processor_kwargs"):  # oldest first
            found |= each.get(name) or {}
    found.pop("trust_remote_code", None)  # only the config may say so
    return found


def transformer_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a Transformer module, such as those in sentence_bert_config.json."""
    found = [read_json(path) for path in sorted(folder.glob("sentence_*_config.json"))]
    return dict(found[0]) if found else {}


def probe_ids(tokenizer: Any) -> list[int]:
    """Return the token ids of one text, without the warning that it is too long."""
    return list(tokenizer("A short text.", verbose=False)["input_ids"])


def transformers_version() -> str:
    """Return such as `transformers 5.23.0`."""
    return f"transformers {importlib.metadata.version('transformers')}"


def tokenizer_of_file(tokenizer: Any, folder: Path, kwargs: Mapping[str, Any]) -> Any:
    """Return a tokenizer as `folder`/tokenizer.json describes it; `tokenizer` if its ids are right.

    `kwargs` are `model.kwargs`.
    """
    settings = transformer_settings(folder)
    file = folder / "tokenizer.json"
    asked = tokenizer_kwargs_of(settings, kwargs)
    kind = type(tokenizer)
    # Tokenizers in Python do not read the file, version 4 always did, a model's own code may not.
    known = hasattr(tokenizer, "backend_tokenizer") and numbers_of(transformers_version()) >= [5]
    if not known or not file.is_file() or kind.__module__.startswith("transformers_modules"):
        return tokenizer
    if any(asked.get(key) is not None for key in _ON_PURPOSE):
        return tokenizer
    from tokenizers import Tokenizer, normalizers
    from transformers import PreTrainedTokenizerFast

    ends = _ENDS.keys() & asked.keys()
    if kind is PreTrainedTokenizerFast and not ends:  # this one reads the file
        return tokenizer
    own = PreTrainedTokenizerFast.from_pretrained(
        folder, **{**tokenizer.special_tokens_map, **asked}
    )
    for name in ("padding_side", "truncation_side", "model_max_length", "model_input_names"):
        setattr(own, name, getattr(tokenizer, name))
    backend = own.backend_tokenizer
    for name in ("normalizer", "pre_tokenizer"):
        ours = getattr(backend, name)
        theirs = getattr(tokenizer.backend_tokenizer, name)
        for flag in _FLAGS:
            if hasattr(ours, flag) and hasattr(theirs, flag):
                setattr(ours, flag, getattr(theirs, flag))
    if settings.get("do_lower_case"):  # as sentence-transformers does to `tokenizer`
        after = [backend.normalizer] if backend.normalizer is not None else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *after])
    if ends:
        _keep_ends((tokenizer, own), Tokenizer.from_file(str(file)).encode("a").ids, asked)
    texts = [*_SAMPLES, *list(own.added_tokens_encoder)[:100]]
    same = all(
        tokenizer(text, return_token_type_ids=True, verbose=False).data
        == own(text, return_token_type_ids=True, verbose=False).data
        for text in texts
    )
    return tokenizer if same else own


def _keep_ends(tokenizers: Iterable[Any], ids: Sequence[int], asked: Mapping[str, Any]) -> None:
    """Have the tokenizers add the token at the other end, if the file's own tokenizer does.

    If one of the two is asked for, transformers drops the other.
    """
    for tokenizer in tokenizers:
        for key, (kind, place, _) in _ENDS.items():
            number = getattr(tokenizer, f"{kind}_token_id")
            if key not in asked and ids[place:][:1] == [number]:
                setattr(tokenizer, key, True)


def check_tokenizer(
    tokenizer: Any, folder: Path, kwargs: Mapping[str, Any], table_rows: int | None
) -> Iterator[str]:
    """Yield a note if it knows no language. Raises WrongModelError if it is not the model's.

    If a folder lacks the files, transformers makes a tokenizer of the special tokens, without a
    word. `table_rows` are those of the embedding table (None = not known), often padded.
    """
    _check_pad_token(tokenizer, table_rows)
    known = len(tokenizer)
    name = type(tokenizer).__name__
    wrong = ""
    if table_rows and max([known - 1, *tokenizer.added_tokens_decoder]) >= table_rows:
        wrong = (
            f"has more tokens than the model's embedding table rows ({table_rows}): it belongs to "
            "another model"
        )
    elif known < 5000:  # a vocabulary takes long to copy
        words = tokenizer.get_vocab().keys() - {*tokenizer.all_special_tokens}
        # Without the file, added tokens come from tokenizer_config.json.
        if not (folder / "tokenizer.json").is_file():
            words -= tokenizer.get_added_vocab().keys()
        if len(words) < 2:  # T5 makes one up
            wrong = (
                "has special tokens and no words: its files (tokenizer.json, vocab.txt, ...) are "
                "missing or empty"
            )
    if wrong:
        raise WrongModelError(
            f"the tokenizer ({name}, {known} tokens) {wrong}. Download the model again, with all "
            "its tokenizer files."
        )
    texts = _SAMPLES[:6]
    found = [tokenizer(text, verbose=False)["input_ids"] for text in texts]
    if all(2 * ids.count(tokenizer.unk_token_id) >= len(ids) - 2 for ids in found):
        yield (
            f"the tokenizer ({name}, {known} tokens) knows the words of no language, such as "
            f"{texts[0]!r}: right for proteins, DNA or molecules, and not for texts"
        )
    saved = read_json(folder / "tokenizer_config.json")
    asked = saved | tokenizer_kwargs_of(transformer_settings(folder), kwargs)
    _check_added_tokens(tokenizer, asked, kwargs_without_code(folder, kwargs))


def _check_pad_token(tokenizer: Any, table_rows: int | None) -> None:
    pad = tokenizer.pad_token
    number = tokenizer.pad_token_id
    wrong = "the tokenizer has no pad token"
    if pad is not None:
        wrong = (
            f"the tokenizer's pad token {pad} has the id {number}, but the embedding table has "
            f"{table_rows} rows"
        )
    if pad is None or (table_rows and number >= table_rows):
        raise WrongModelError(
            f"{wrong}: two texts of different lengths could not be encoded in one batch. Name the "
            "one that the model's author used, often the end token: model.kwargs: "
            "{processor_kwargs: {pad_token: TOKEN}}."
        )


def _check_added_tokens(tokenizer: Any, asked: Mapping[str, Any], line: str) -> None:
    for key, (kind, place, at) in _ENDS.items():
        token = getattr(tokenizer, f"{kind}_token")
        number = getattr(tokenizer, f"{kind}_token_id")
        if asked.get(key) is not True or token is None:
            continue
        if probe_ids(tokenizer)[place:][:1] == [number]:
            continue
        mend = f"Add {token} to the post_processor in tokenizer.json."
        if line:
            mend = f"Set `{line}` (or {key}: false, if the author's vectors lack it)."
        raise WrongModelError(
            f'tokenizer_config.json says "{key}": true, but the tokenizer of '
            f"{transformers_version()} does not put {token} {at}: the model would read another "
            f"text than it was trained with. {mend}"
        )
