"""A source file elsewhere, fetched for as long as it is read."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from chunkvisor.errors import Halt
from chunkvisor.ingest.remote import fetch, state_of
from chunkvisor.ingest.sources import SourceFile


@contextlib.contextmanager
def at_hand(file: SourceFile, scratch: Path) -> Iterator[SourceFile]:
    """The file where it can be read; one that is fetched goes away afterwards, and messages have its address.

    Raises Halt as `remote.fetch`, and what is raised inside.
    """
    if file.address is None:
        yield file
        return
    local = scratch / f"fetched{''.join(file.path.suffixes[-2:])}"
    try:
        fetch(file.address, local, int(state_of(file.address)[1]))
        yield replace(file, path=local, address=None)
    except Halt as halt:
        what, why, remedy = (text.replace(str(local), file.address) for text in (halt.what, halt.why, halt.remedy))
        raise Halt(halt.code, what, why=why, remedy=remedy, log=halt.log) from halt
    finally:
        local.unlink(missing_ok=True)
