"""The child: uploads the files of a finished final, and its manifest last.

Each file goes under a name of its own first, is read back and compared with its digest, and is copied to its place by
the storage itself, which replaces an earlier one at once. Until then, what was there stays as it was.
"""

import hashlib
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from chunkvisor.child import answer_parent
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.ingest.remote import file_system, persistently, state_of
from chunkvisor_worker.contract.files import open_regular

_BLOCK_BYTES = 32 << 20
"""S3 takes 10,000 parts of an upload: 320 GB of a file."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One file of a final."""

    path: str
    name: str
    """Behind the address."""
    digest: str
    """sha256, hex."""


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """What is to be where."""

    address: str
    """Of the folder; all files of one request are of one final."""
    files: tuple[Sent, ...]
    """The manifest last."""
    stale: tuple[str, ...] = ()
    """Names of files of an earlier upload that are not part of this one."""


def upload(request: UploadRequest) -> dict[str, list[str | int]]:
    """Do it; returns the state of each file there, by name. Raises Halt (74, 75, 78), OSError."""
    files, waiting = file_system(request.address), list[tuple[str, str]]()
    for sent in request.files:
        place = f"{request.address}/{sent.name}"
        before, slash, last = place.rpartition("/")
        beside = f"{before}{slash}.{last}.uploading"
        persistently(place, partial(_send, files, sent, beside))
        waiting.append((beside, place))
    for beside, place in waiting:
        persistently(place, partial(files.cp_file, _bare(files, beside), _bare(files, place)))
    for address in (*(f"{request.address}/{name}" for name in request.stale), *(beside for beside, _ in waiting)):
        with suppress(FileNotFoundError):
            persistently(address, partial(files.rm_file, _bare(files, address)))
    return {sent.name: state_of(f"{request.address}/{sent.name}") for sent in request.files}


def _send(files: Any, sent: Sent, address: str) -> None:
    """Upload one file and compare it. Raises Halt, and whatever may pass."""
    ours = hashlib.sha256()
    with (
        open_regular(Path(sent.path)) as source,
        files.open(_bare(files, address), "wb", block_size=_BLOCK_BYTES) as there,
    ):
        while block := source.read(_BLOCK_BYTES):
            ours.update(block)
            there.write(block)
    if ours.hexdigest() != sent.digest:
        raise Halt(
            ExitCode.DISK,
            f"{sent.path} is not what its manifest says, and is not uploaded",
            remedy="`chunkvisor verify` says more; move the file away, and the next run makes it anew",
        )
    theirs = hashlib.sha256()
    with files.open(_bare(files, address), "rb", block_size=_BLOCK_BYTES) as there:
        while block := there.read(_BLOCK_BYTES):
            theirs.update(block)
    if theirs.hexdigest() != sent.digest:
        raise ConnectionError(f"{address} is not what was sent")


def _bare(files: Any, address: str) -> str:
    return str(files._strip_protocol(address))


def main(arguments: list[str]) -> int:
    """See `answer_parent`; says what `upload` returns."""
    return answer_parent(arguments, UploadRequest, lambda request, _: upload(request), _halt_of)


def _halt_of(error: Exception, _request: UploadRequest | None, _folder: Path) -> Halt | None:
    return error if isinstance(error, Halt) else None


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(ended)  # without waiting for threads of the storage's library
