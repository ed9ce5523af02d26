"""The files of an output's committed chunks, which are known by their names."""

import os
from collections.abc import Iterator
from pathlib import Path

from chunkvisor.store.fixed import Plan
from chunkvisor.store.outputlayout import CHUNKS_PER_FOLDER, OutputLayout, parse_chunk_name
from chunkvisor_worker.contract.files import remove_folder


def chunk_files(layout: OutputLayout) -> Iterator[tuple[int, Path]]:
    """(number, file) of all committed chunks, in order; lists one folder of a thousand at a time.

    Raises OSError.
    """
    if not layout.chunks.is_dir():
        return
    for number in sorted({int(path.name) for path in layout.chunks.iterdir() if path.name.isdecimal()}):
        folder = layout.chunk(number * CHUNKS_PER_FOLDER, "").parent
        for name in sorted(os.listdir(folder)) if folder.is_dir() else ():  # noqa: PTH208 - no Path for each
            parsed = parse_chunk_name(name)
            if parsed and parsed[0] // CHUNKS_PER_FOLDER == number:
                yield parsed[0], folder / name


def remove_chunk(layout: OutputLayout, number: int) -> None:
    """Remove whatever has the name of a file of that chunk. Raises OSError."""
    folder = layout.chunk(number, "").parent
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if (parse_chunk_name(path.name) or (None,))[0] == number:
            if path.is_dir() and not path.is_symlink():
                remove_folder(path)
            else:
                path.unlink()


def committed_chunks(layout: OutputLayout, plan: Plan) -> bytearray:
    """One byte a chunk: 1 where it has a file, by the names alone."""
    found = bytearray(plan.count)
    for folder in layout.chunks.iterdir() if layout.chunks.is_dir() else ():
        for name in os.listdir(folder) if folder.is_dir() else ():  # noqa: PTH208 - no Path for each
            if (parsed := parse_chunk_name(name)) and parsed[0] < len(found):
                found[parsed[0]] = 1
    return found
