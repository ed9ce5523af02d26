"""The child: uploads the files of a finished final, and its manifest last; or only looks what is there.

Each file goes under a name of its own first, is read back and compared with its digest, and is copied to its place by
the storage itself, which replaces an earlier one at once. Until then, what was there stays as it was. What there is
already is not sent again, and what this workdir has not put there is neither replaced nor removed.
"""

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from chunkvisor.assemble.uploadowner import Content, Known, Whose, bare, digest_there, has_vectors, refusal, whose
from chunkvisor.child import answer_parent
from chunkvisor.errors import ExitCode, Halt
from chunkvisor.ingest.remote import State, file_system, persistently, state_there
from chunkvisor_worker.contract.files import open_regular

_BLOCK_BYTES = 32 << 20
"""S3 takes 10,000 parts of an upload: 320 GB of a file."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One file of a final."""

    path: str
    name: str
    """Behind the address."""
    content: Content


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """What is to be where."""

    address: str
    """Of the folder."""
    files: tuple[Sent, ...] = ()
    """Of one final, the manifest last."""
    vectors: dict[str, Any] = field(default_factory=dict)
    """What its manifest says of them."""
    known: tuple[Known, ...] = ()
    """What this workdir has put there; what is not of this final any more is removed."""
    mark: str = ""
    """In the names of files under way, so that two workdirs do not write to the same ones."""
    look_for: tuple[str, ...] = ()
    """Names of files whose states are all that is asked for."""


States = dict[str, State | None]
"""By name; None = there is nothing."""


def do(request: UploadRequest) -> States:
    """What is asked for. Raises Halt (74, 75, 78), OSError."""
    if request.files:
        return upload(request)
    files = file_system(request.address)
    return {name: state_there(files, f"{request.address}/{name}") for name in request.look_for}


def upload(request: UploadRequest) -> States:
    """Do it; returns the state of each file there. Raises Halt (74, 75, 78), OSError."""
    address, files = request.address, file_system(request.address)
    before, sending, stale = _judge(files, request)
    copies = {sent.name: f"{address}/{_under_way(sent.name, request.mark)}" for sent in request.files}
    for sent in sending:
        persistently(f"{address}/{sent.name}", partial(_send, files, sent, copies[sent.name]))
    try:
        _refuse_changed(files, address, before, [*(sent.name for sent in sending), *stale])
        for sent in sending:
            copy, place = copies[sent.name], f"{address}/{sent.name}"
            persistently(place, partial(files.cp_file, bare(files, copy), bare(files, place)))
        _remove(files, [f"{address}/{name}" for name in stale])
    finally:
        _remove(files, list(copies.values()))  # those of an upload that was killed as well
    return {sent.name: state_there(files, f"{address}/{sent.name}") for sent in request.files}


def _judge(files: Any, request: UploadRequest) -> tuple[States, list[Sent], list[str]]:
    """What is there, what is to be sent, and what is to be removed.

    Raises Halt (78) where something there is another's that would be replaced, and 75.
    """
    address, known = request.address, {each.name: each for each in request.known}
    wanted = {sent.name: sent for sent in request.files}
    there, owners = States(), dict[str, Whose]()
    for name in dict.fromkeys((*wanted, *known)):
        place, content = f"{address}/{name}", wanted[name].content if name in wanted else None
        there[name] = state = state_there(files, place)
        owners[name] = whose(files, place, state, known.get(name), content)
    manifest = request.files[-1].name
    if owners[manifest] is Whose.ANOTHER and has_vectors(files, f"{address}/{manifest}", request.vectors):
        owners[manifest] = Whose.OURS
    if others := [name for name in wanted if owners[name] is Whose.ANOTHER]:
        raise refusal(address, others)
    sending = [sent for sent in request.files if owners[sent.name] is not Whose.AS_WANTED]
    return there, sending, [name for name in known if name not in wanted and owners[name] is Whose.OURS]


def _remove(files: Any, addresses: Sequence[str]) -> None:
    for each in addresses:
        if state_there(files, each) is not None:
            persistently(each, partial(files.rm_file, bare(files, each)))


def _under_way(name: str, mark: str) -> str:
    before, slash, last = name.rpartition("/")
    return f"{before}{slash}.{last}.{mark}.uploading"


def _refuse_changed(files: Any, address: str, before: States, names: Sequence[str]) -> None:
    """Raises Halt (75) where something came or went while the final was sent, which may take hours."""
    for name in names:
        if state_there(files, f"{address}/{name}") != before[name]:
            raise Halt(
                ExitCode.TRY_AGAIN,
                f"{address}/{name} has changed while the final was sent.",
                remedy="Run again when nothing else writes there.",
            )


def _send(files: Any, sent: Sent, address: str) -> None:
    """Upload one file and compare it. Raises Halt, and whatever may pass."""
    ours = hashlib.sha256()
    with (
        open_regular(Path(sent.path)) as source,
        files.open(bare(files, address), "wb", block_size=_BLOCK_BYTES) as there,
    ):
        while block := source.read(_BLOCK_BYTES):
            ours.update(block)
            there.write(block)
    if ours.hexdigest() != sent.content.digest:
        raise Halt(
            ExitCode.DISK,
            f"{sent.path} is not what its manifest says, and is not uploaded",
            remedy="`chunkvisor verify` says more; move the file away, and the next run makes it again",
        )
    if digest_there(files, address) != sent.content.digest:
        raise ConnectionError(f"{address} is not what was sent")


def main(arguments: list[str]) -> int:
    """See `answer_parent`; says what `do` returns."""
    return answer_parent(arguments, UploadRequest, lambda request, _: do(request), _halt_of)


def _halt_of(error: Exception, _request: UploadRequest | None, _folder: Path) -> Halt | None:
    return error if isinstance(error, Halt) else None


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(ended)  # without waiting for threads of the storage's library
