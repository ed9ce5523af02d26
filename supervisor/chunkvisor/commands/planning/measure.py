"""Lengths of the texts of staged tables: in tokens by a child with the model's tokenizer, or in characters."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chunkvisor.child import for_tokenizer, run_child
from chunkvisor.commands.planning.forecast import Unit
from chunkvisor.commands.planning.histogram import Lengths
from chunkvisor.commands.planning.samples import Sample
from chunkvisor.config.model import Config
from chunkvisor.config.specs import model_spec
from chunkvisor.engine.modelchecks import check_model_files, refuse_wrong_model
from chunkvisor.engine.modelsource import ModelSource, source_at_hand
from chunkvisor.ingest.tablefiles import TableFiles
from chunkvisor.store.childend import verdict_of_child
from chunkvisor.store.layout import Layout
from chunkvisor_worker.contract.lengths import LengthsAnswer, LengthsFiles, LengthsReport, LengthsRequest, LengthsTask
from chunkvisor_worker.contract.messages import ModelSpec
from chunkvisor_worker.contract.wire import read_message, write_message

_BLOCK_TEXTS = 1024


class UncountableError(Exception):
    """Tokens cannot be counted; the message says why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Lengths of the texts of one output."""

    lengths: Lengths
    unit: Unit
    report: LengthsReport | None = None
    """Of the child that counts tokens."""


def measure(
    config: Config, layout: Layout, samples: Sequence[Sample], scratch: Path
) -> tuple[Path | None, list[Measured], list[str]]:
    """Folder of the model, where there is one; the lengths of each output; what a person has to know of them.

    Raises Halt where the model's folder is wrong, OSError.
    """
    if config.model.is_plugin:
        note = "lengths are in characters: only the plug-in encoder itself knows its tokens"
        return None, _in_characters(samples), [note]
    source = source_at_hand(config.model, layout.model) or ModelSource(None, config.model.revision)
    refuse_wrong_model(config, source.path)
    spec = model_spec(config.model, source.path, source.revision)
    folder = scratch / "lengths"
    folder.mkdir(mode=0o700)
    try:
        answer, lengths = _count_tokens(spec, samples, folder)
    except UncountableError as error:
        note = f"lengths are in characters, tokens could not be counted: {error}"
        return Path(spec.path) if spec.path else None, _in_characters(samples), [note]
    if source.path is None:  # the child has found the tokenizer's files on the hub
        refuse_wrong_model(config, answer.path)
    notes = [f"{what}; {mend}" for what, mend in check_model_files(config, answer.path).warnings]
    if any(report.estimated for report in answer.reports):
        notes.append("tokens are estimated, one for three bytes: this model brings no tokenizer of its own")
    found = [
        Measured(each, Unit.ESTIMATED_TOKENS if report.estimated else Unit.TOKENS, report)
        for each, report in zip(lengths, answer.reports, strict=True)
    ]
    return Path(answer.path), found, notes


def _in_characters(samples: Sequence[Sample]) -> list[Measured]:
    return [Measured(_count_characters(sample), Unit.CHARACTERS) for sample in samples]


def _count_tokens(model: ModelSpec, samples: Sequence[Sample], folder: Path) -> tuple[LengthsAnswer, list[Lengths]]:
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


def _count_characters(sample: Sample) -> Lengths:
    """Characters of each text looked at; int32 of shape (texts,). Raises DamagedError, OSError."""
    counts: list[int] = []
    for texts in sample.texts():
        for first in range(texts.start, texts.stop, _BLOCK_TEXTS):
            counts += map(len, sample.table.texts(first, min(texts.stop, first + _BLOCK_TEXTS)))
    return np.array(counts, dtype=np.int32)


def _run(files: LengthsFiles) -> int:
    command = [sys.executable, "-P", "-m", "chunkvisor_worker.lengths", str(files.folder)]
    return run_child(command, files.log, environment=for_tokenizer())
