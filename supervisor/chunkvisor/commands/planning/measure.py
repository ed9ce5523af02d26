"""Lengths of the texts of staged tables: in tokens by a child with the model's tokenizer, or in characters."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chunkvisor.child import for_tokenizer, run_child
from chunkvisor.commands.planning.samples import Sample
from chunkvisor.ingest.tablefiles import TableFiles
from chunkvisor.observe.histogram import Lengths
from chunkvisor.store.childend import verdict_of_child
from chunkvisor_worker.contract.lengths import LengthsAnswer, LengthsFiles, LengthsRequest, LengthsTask
from chunkvisor_worker.contract.messages import ModelSpec
from chunkvisor_worker.contract.wire import read_message, write_message

_BLOCK_TEXTS = 1024


class UncountableError(Exception):
    """Tokens cannot be counted; the message says why."""


def count_tokens(model: ModelSpec, samples: Sequence[Sample], folder: Path) -> tuple[LengthsAnswer, list[Lengths]]:
    """Ask the child, which works in the existing empty folder. Raises UncountableError, OSError."""
    files = LengthsFiles(folder)
    tasks = [
        LengthsTask(
            texts=str(TableFiles(sample.table.folder).texts),
            offsets=str(TableFiles(sample.table.folder).offsets),
            count=sample.plan.distinct,
            chunk_size=sample.plan.chunk_size,
            every=sample.every,
            encode=sample.encode,
            limits=sample.limits,
        )
        for sample in samples
    ]
    write_message(files.request, LengthsRequest(model, tuple(tasks)), durable=False)
    returncode = _run(files)
    answer = read_message(LengthsAnswer, files.answer)
    if answer is None or len(answer.reports) != len(tasks):
        verdict = verdict_of_child(returncode, files.fault, files.log)
        raise UncountableError(f"{verdict.reason} {verdict.remedy}".strip())
    try:
        lengths = [np.load(files.lengths(number), allow_pickle=False) for number in range(len(tasks))]
    except (OSError, ValueError) as error:
        raise UncountableError(f"what the tokenizer's process left cannot be read: {error}") from None
    return answer, lengths


def count_characters(sample: Sample) -> Lengths:
    """Characters of each text looked at; int32 of shape (texts,). Raises DamagedError, OSError."""
    counts: list[int] = []
    for texts in sample.texts():
        for first in range(texts.start, texts.stop, _BLOCK_TEXTS):
            counts += map(len, sample.table.texts(first, min(texts.stop, first + _BLOCK_TEXTS)))
    return np.array(counts, dtype=np.int32)


def _run(files: LengthsFiles) -> int:
    command = [sys.executable, "-P", "-m", "chunkvisor_worker.lengths", str(files.folder)]
    return run_child(command, files.log, environment=for_tokenizer())
