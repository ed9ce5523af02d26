"""The events of a run in plain words, one line each.

Pure: it never says when something happened, nor where the line is shown.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Weight(IntEnum):
    """How much an event matters to the person."""

    NEWS = 0
    """As it should be."""
    CARE = 1
    """Something went wrong, and is being mended."""
    LOSS = 2
    """Something is lost or left undone, at least by this run: it is shown even with --quiet."""


def words_of(event: str, details: Mapping[str, Any]) -> str | None:
    """One line without control characters; None where a person need not know of the event."""
    template = _WORDS.get(event)
    if template is None:
        return None
    try:
        return plain(template.format_map(details))
    except (KeyError, ValueError, TypeError):  # from the journal of another version
        return None


def weight_of(event: str) -> Weight:
    """How much an event of that name matters."""
    return _WEIGHTS.get(event, Weight.NEWS)


def plain(text: str) -> str:
    """The text on one line, with nothing in it that could steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text).strip()


_WORDS = {
    "run_started": "working in {workdir} on {device}",
    "staging": "{output}: reading its source",
    "staged": "{output}: {rows:,} rows, {distinct:,} distinct texts",
    "resolving": "asking the hub for {model}",
    "output_opened": "{output}: {chunks:,} chunks of {chunk_size:,} texts, {chunks_done:,} done before",
    "note": "{text}",
    "warm_given_up": "from now on every worker is a new interpreter; the template process failed: {reason}",
    "attempt_failed": "{output} chunk {chunk}, attempt {attempt}: {outcome}: {reason}",
    "limits_lowered": "batches{of_length}: from now on at most {rows:,} rows",
    "limits_widened": "batches{of_length}: {rows:,} rows are tried again, after a streak without a fault",
    "late_crash": "{output} chunk {chunk}: the worker crashed after its work was done, which counts",
    "waiting": "nothing is started for {delay_s:.0f} s: {reason}",
    "waiting_to_join": "{output}: waiting for disk space: {reason}",
    "device_dropped": "{device} is left out from now on, {left} go on: {why}",
    "node_joined": "node {node} works from now on, on {device}",
    "node_lost": "node {node} is lost, {left} devices go on; its chunks are done elsewhere: {why}",
    "node_set_aside": "node {node} is left out from now on, {left} devices go on: {why}",
    "gpu_busy": "{device}: waiting, {why}",
    "gpus_guessed": "nvidia-smi does not tell of the GPUs, but the driver's device files are there: {count} taken; "
    "CUDA may work all the same, chunkvisor doctor says more",
    "gpu_lost": "a GPU has fallen off the bus, and the others are taken; nvidia-smi says: {why}",
    "gpu_blind": "{device}: {why}; going on without, CUDA may work all the same",
    "chunk_split": "{output} chunk {chunk}: {texts:,} texts are taken apart, {parts} tries follow",
    "quarantined": "{output} row {row} ({place}) cannot be encoded and gets no vector: {outcome}: {reason}",
    "chunk_set_aside": "{output} chunk {chunk} is given up for this run: {reason}",
    "chunk_damaged": "{output} chunk {chunk} is damaged and will be computed again: {why}",
    "orphans_ended": "ended {count} processes that an earlier run had left behind",
    "assembling": "{output}: joining {chunks:,} chunks",
    "output_complete": "{output}: complete, {rows:,} rows x {dimension}, {path}",
    "output_already_complete": "{output}: complete already, {rows:,} rows x {dimension}, {path}",
    "waiting_for_turn": "waiting for {who}, which prepares or joins what belongs to all slices",
    "slice_done": "slice {slice} is done, and with it {done:,} of all {chunks:,} chunks; "
    "the last slice joins them, or a run without --slice",
    "draining": "{signal}: finishing the chunks under way; once more stops at once",
}

_WEIGHTS = {
    "attempt_failed": Weight.CARE,
    "chunk_damaged": Weight.CARE,
    "chunk_set_aside": Weight.LOSS,
    "chunk_split": Weight.CARE,
    "device_dropped": Weight.LOSS,
    "node_lost": Weight.CARE,
    "node_set_aside": Weight.LOSS,
    "gpu_busy": Weight.CARE,
    "gpus_guessed": Weight.CARE,
    "gpu_lost": Weight.LOSS,
    "late_crash": Weight.CARE,
    "limits_lowered": Weight.CARE,
    "quarantined": Weight.LOSS,
    "waiting": Weight.CARE,
    "waiting_to_join": Weight.CARE,
    "warm_given_up": Weight.CARE,
}
"""NEWS where nothing is said."""
