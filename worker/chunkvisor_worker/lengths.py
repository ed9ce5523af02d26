"""`python -m chunkvisor_worker.lengths FOLDER` counts the tokens of texts, before any cut.

It needs the tokenizer and a few JSON files of the model: no weights, no GPU.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np

from chunkvisor_worker.batching import batches_of, estimated_tokens, padded_tokens
from chunkvisor_worker.contract.exits import WorkerExit
from chunkvisor_worker.contract.files import SMALL_FILES, AttemptFiles, read_json
from chunkvisor_worker.contract.messages import (
    EncodeSpec,
    LengthsAnswer,
    LengthsReport,
    LengthsRequest,
    LengthsTask,
    ModelSpec,
    Phase,
)
from chunkvisor_worker.contract.wire import read_message, write_message
from chunkvisor_worker.faults import recorded
from chunkvisor_worker.liveness import die_with_parent, exit_now
from chunkvisor_worker.model import (
    NO_LIMIT,
    chosen_prompt,
    first_module,
    split_kwargs,
    use_hub,
)
from chunkvisor_worker.tokenizer import (
    check_tokenizer,
    tokenizer_kwargs_of,
    tokenizer_of_file,
    transformer_settings,
)

BLOCK_TEXTS = 1024  # tokenized at once; more would use more cores, and more memory


class TokenCounter:
    """The tokenizer of a model folder, and the limit that the model sets."""

    def __init__(self, model: ModelSpec, folder: Path) -> None:
        """Load it.

        Raises WrongModelError, and whatever transformers raises for a folder without one.
        """
        own, _ = split_kwargs(model.kwargs)
        self._prompts = read_json(folder / "config_sentence_transformers.json") | own
        kind, place = first_module(folder)
        settings = transformer_settings(place)
        self.lower = settings.get("do_lower_case")  # whether texts are lowered first
        self.max_length = model.max_length
        self.tokenizer: Any = None  # if the model has none
        if kind != "Transformer":
            return
        from transformers import AutoTokenizer, logging

        kwargs = tokenizer_kwargs_of(settings, own)
        logging.set_verbosity_error()  # else each text above the model's limit gives a warning
        trust = model.trust_remote_code is True
        made = AutoTokenizer.from_pretrained(str(place), trust_remote_code=trust, **kwargs)
        self.tokenizer = tokenizer_of_file(made, place, own)
        config = read_json(place / "config.json")
        rows = config.get("vocab_size")
        list(check_tokenizer(self.tokenizer, place, own, rows))  # a run shows its notes
        if self.max_length is None:
            # As sentence-transformers: its own setting, else the tokenizer's within the positions.
            length = kwargs.get("model_max_length") or settings.get("max_seq_length")
            if length is None:
                positions = config.get("max_position_embeddings")
                length = self.tokenizer.model_max_length
                if isinstance(positions, int) and positions > 0:  # XLNet says -1
                    length = min(length, positions)
            self.max_length = int(length) if length < NO_LIMIT else None

    def prompt(self, encode: EncodeSpec) -> str:
        """Return the text that the encoder puts before every text."""
        # Every model has these two, empty if its files do not name them.
        prompts = {"query": "", "document": "", **(self._prompts.get("prompts") or {})}
        return chosen_prompt(encode, prompts, self._prompts.get("default_prompt_name")) or ""

    def count(self, texts: list[str]) -> list[int]:
        """Count the tokens of each text, with special ones and without any cut.

        They are estimated for a model without a tokenizer.
        """
        if self.tokenizer is None:
            return [estimated_tokens(len(text.encode())) for text in texts]
        lowered = [text.lower() for text in texts] if self.lower else texts
        ids = self.tokenizer(
            lowered,
            truncation=False,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        return [len(each) for each in ids]


def measure(counter: TokenCounter, task: LengthsTask, out: Path) -> LengthsReport:
    """Count, cut into batches chunk by chunk, and save the lengths to `out`. Raises OSError."""
    prompt = counter.prompt(task.encode)
    found = [np.zeros(0, dtype=np.int64)]
    tokens = padded = batches = blank_ends = 0
    for start in range(0, task.count, task.chunk_size * task.every):
        stop = min(task.count, start + task.chunk_size)
        counts: list[int] = []
        for first in range(start, stop, BLOCK_TEXTS):
            texts = _read_texts(task, first, min(stop, first + BLOCK_TEXTS))
            counts += counter.count([prompt + text for text in texts])
            blank_ends += sum(text[-1:].isspace() for text in texts)
        lengths = np.array(counts, dtype=np.int64)
        kept = lengths if counter.max_length is None else np.minimum(lengths, counter.max_length)
        parts = batches_of(kept, task.limits)
        tokens += int(kept.sum())
        padded += sum(padded_tokens(kept, part) for part in parts)
        batches += len(parts)
        found.append(lengths)
    np.save(out, np.concatenate(found).astype(np.int32), allow_pickle=False)
    return LengthsReport(
        str(out),
        counter.max_length,
        counter.tokenizer is None,
        tokens,
        padded,
        batches,
        blank_ends,
    )


def _read_texts(task: LengthsTask, first: int, stop: int) -> list[str]:
    count = stop - first + 1
    bounds = np.fromfile(task.offsets, dtype="<u8", count=count, offset=8 * first).tolist()
    with open(task.texts, "rb") as file:
        file.seek(bounds[0])
        return [file.read(end - begin).decode() for begin, end in itertools.pairwise(bounds)]


def main() -> None:
    """Answer, and leave result.json or fault.json in the folder."""
    folder = Path(sys.argv[1])
    files = AttemptFiles(folder)
    die_with_parent()
    request = read_message(LengthsRequest, files.spec)
    if not request:
        exit_now(WorkerExit.USAGE, f"{files.spec} is missing or is not a request")
    with recorded(files.fault, Phase.TOKENIZE):
        model = request.model
        path = model.path
        use_hub(model)
        if not path:
            from huggingface_hub import snapshot_download

            path = snapshot_download(
                model.name, revision=model.revision, allow_patterns=SMALL_FILES
            )
        counter = TokenCounter(model, Path(path))
        tasks = enumerate(request.tasks)
        reports = tuple(
            measure(counter, task, folder / f"lengths{number}.npy") for number, task in tasks
        )
        write_message(files.result, LengthsAnswer(path, reports))


if __name__ == "__main__":
    main()
