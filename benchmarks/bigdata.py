"""Makes what the scale benchmarks need.

Large sources, and workdirs in which chunks are committed already.

It never starts a worker; what it commits passes every check of a resume.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash

from chunkvisor.events.event import AttemptStarted, ChunkCommitted, Go, WorkerEnded
from chunkvisor.events.journal import Journal, read_events
from chunkvisor.store.artifact import chunk_key, npy_header
from chunkvisor.store.layout import Layout
from chunkvisor.store.reuse import ledger_of

_BLOCK = 100_000
_STORY = (AttemptStarted, Go, WorkerEnded, ChunkCommitted)
_VERBS = (
    "fix",
    "add",
    "remove",
    "rename",
    "document",
    "test",
    "speed up",
    "revert",
    "extend",
    "clean up",
)
_NOUNS = (
    "parser",
    "cache",
    "driver",
    "scheduler",
    "config loader",
    "login page",
    "index",
    "build",
    "report",
    "queue",
)


def write_lines(path: Path, rows: int) -> None:
    """Lines of some 80 bytes, one in ten from a few thousand common ones, one in ten a repeat of any before."""
    chance = random.Random(0)  # noqa: S311 - texts, not secrets
    phrases = [
        f"{verb} the {noun} of module {chance.randrange(1000)}"
        for verb in _VERBS
        for noun in _NOUNS
    ] * 11

    def text_of(number: int) -> str:
        mixed = (number * 0x9E3779B97F4A7C15 >> 7) & 0xFFFFF
        return f"{phrases[mixed & 1023]}, then {phrases[mixed >> 10]} for issue {number}"

    def lines() -> Iterator[str]:
        bits, below = chance.getrandbits, chance.randrange
        for number in range(rows):
            kind = bits(8)
            if kind < 26:
                yield f"merge branch {kind * 97 % 7}/{bits(11)} into main after review and continuous integration\n"
            else:
                yield text_of(below(number + 1) if kind < 52 else number) + "\n"

    _write(path, lines())


def write_short_lines(path: Path, rows: int, *, distinct: bool = True) -> None:
    """Lines of some ten bytes.

    Unless they are to be distinct, one in ten is one from the first third before it.
    """
    if distinct:
        _write(path, (f"row {number:x}\n" for number in range(rows)))
    else:
        _write(
            path,
            (f"row {number // 3 if number % 10 == 9 else number:x}\n" for number in range(rows)),
        )


def write_parquet_files(folder: Path, files: int, rows: int) -> None:
    """So many parquet files of so many rows each, with the column `text`."""
    import duckdb

    folder.mkdir()
    with duckdb.connect() as connection:
        for number in range(files):
            first = number * rows
            connection.execute(
                f"COPY (SELECT 'a text of some words, and its "
                f"number ' || range AS text "
                f"FROM range({first}, {first + rows})) TO '{folder}/{number:06d}.parquet' (FORMAT "
                f"parquet)"
            )


def commit_chunks(workdir: Path, stop: int) -> None:
    """Commit the pending chunks of output `out` below `stop`, and tell the journal of them as a run would.

    A run must have committed one: from it come the facts, and the events that are told again for each other chunk.
    """
    layout = Layout(workdir)
    ledger = ledger_of(layout.output("out"))
    assert ledger is not None
    ledger.load()
    assert ledger.facts is not None
    dimension, plan = ledger.facts.dimension, ledger.plan
    entries = {
        type(entry.event): entry
        for entry in read_events(layout.events)
        if isinstance(entry.event, _STORY)
    }
    journal = Journal(layout.events, entries[Go].run)
    vectors = np.random.default_rng(0).standard_normal(
        (plan.chunk_size, dimension), dtype=np.float32
    )
    for chunk in range(stop):
        if ledger.committed(chunk):
            continue
        rows = plan.size(chunk)
        vectors[0, 0] = chunk + 1
        data = npy_header(rows, dimension) + vectors[:rows].tobytes()
        path = ledger.layout.chunk(
            chunk,
            chunk_key(ledger.fingerprint, *plan.bounds(chunk), xxhash.xxh3_128_hexdigest(data)),
        )
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(data)
        for kind in _STORY:
            event = entries[kind].event
            assert isinstance(event, _STORY)
            event = replace(event, chunk=chunk)
            if isinstance(event, ChunkCommitted):
                event = replace(event, chunks_done=chunk + 1, texts_done=plan.bounds(chunk)[1])
            journal.write(event)
    journal.close()


def _write(path: Path, lines: Iterator[str]) -> None:
    import itertools

    with open(path, "w", encoding="utf-8") as file:
        while block := list(itertools.islice(lines, _BLOCK)):
            file.write("".join(block))
