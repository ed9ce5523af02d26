"""Reckons disk, memory and time from counts and sizes. Pure."""

from collections.abc import Iterable

from chunkvisor.events.attempt import ChunkCommitted
from chunkvisor.events.journal import Entry
from chunkvisor.store.disk import RESERVE_BYTES, need_bytes

LIBRARIES_BYTES = 1 << 30
"""About what torch and transformers take in a process, beside the weights."""

CONTEXT_BYTES = 1 << 29
"""About what a CUDA context with its libraries takes of a GPU's memory (300 to 500 MB on recent cards)."""

_HEADER_BYTES = 128


def final_bytes(rows: int, row_bytes: int) -> int:
    """Size of a final file with numpy's header; parquet is about as large."""
    return row_bytes * rows + _HEADER_BYTES


def disk_bytes(rows: int, texts_left: int, dimension: int, table_bytes: int, row_bytes: int = 0) -> int:
    """What an output still needs at most: its staged texts, the chunks to come, and the final file beside them.

    `row_bytes` is that of a final that is not float32 in an array.
    """
    return need_bytes(rows, texts_left, dimension, row_bytes) - RESERVE_BYTES + table_bytes


def memory_bytes(weights_bytes: int, activation_bytes: int, workers: int, computing: int) -> int:
    """Host memory of the workers, and of the `computing` batches that they hold there: none where that is on a GPU.

    Each loads the weights to host memory, before it moves them to its device.
    """
    return workers * (LIBRARIES_BYTES + weights_bytes) + computing * activation_bytes


def gpu_bytes(weights_bytes: int, activation_bytes: int, per_device: int) -> int:
    """Memory of one GPU on which `per_device` workers compute at a time."""
    return per_device * (CONTEXT_BYTES + weights_bytes + activation_bytes)


def last_rate(entries: Iterable[Entry]) -> float | None:
    """Texts a second over all devices, as the last commit that had a rate tells it."""
    rate = None
    for entry in entries:
        if isinstance(entry.event, ChunkCommitted) and (entry.event.texts_per_s or 0) > 0:
            rate = entry.event.texts_per_s
    return rate


def stride(chunks: int, chunk_size: int, most_texts: int) -> int:
    """N, where every Nth chunk is to be looked at, so that about `most_texts` texts are; 1 = all."""
    return max(1, -(-chunks * chunk_size // most_texts)) if chunks > 1 else 1


def scaled(count: int, measured: int, total: int) -> int:
    """A count among the measured texts, as it would be among all."""
    return round(count * total / measured) if measured else 0
