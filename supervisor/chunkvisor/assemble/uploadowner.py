"""Whose a file is that stands where an upload would put one.

It is this workdir's if it is in the state in which the last upload left it, or has a content that an upload began to
send; and a manifest also where it describes the very same vectors, as after the workdir was lost and made again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from chunkvisor.errors import Halt, config_error
from chunkvisor.ingest.remote import State, persistently
from chunkvisor.units import listed

_BLOCK_BYTES = 32 << 20
_LARGEST_MANIFEST_BYTES = 256 << 20
_NAMED = 3
"""In a message."""


class Whose(Enum):
    """Of a name behind an address."""

    NOBODY = auto()
    """There is nothing."""
    AS_WANTED = auto()
    """What is to be there is there."""
    OURS = auto()
    """It may be replaced."""
    ANOTHER = auto()


@dataclass(frozen=True, slots=True)
class Content:
    """Of a file."""

    digest: str
    """sha256, hex."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Known:
    """A file that this workdir has put there, or has begun to."""

    name: str
    """Behind the address."""
    contents: tuple[Content, ...]
    """More than one: an upload broke off, and it is one of them."""
    size_bytes: int = -1
    tag: str = ""
    """As `remote.state_of` has them, after the last upload that did not break off."""

    def is_as_left(self, there: State | None) -> bool:
        """Whether nobody has touched it since."""
        return there is not None and self.tag != "" and (self.size_bytes, self.tag) == (there[1], there[2])


def whose(files: Any, address: str, there: State | None, known: Known | None, wanted: Content | None) -> Whose:
    """Whose the file at the address is; it is read where its state does not tell. Raises Halt (75, 78)."""
    if there is None:
        return Whose.NOBODY
    begun = known.contents if known is not None else ()
    if known is not None and known.is_as_left(there):
        return Whose.AS_WANTED if begun == (wanted,) else Whose.OURS
    ours = {content.digest: content.size_bytes for content in (*begun, *([wanted] if wanted is not None else []))}
    if there[1] not in ours.values():
        return Whose.ANOTHER
    digest = persistently(address, lambda: digest_there(files, address))
    if wanted is not None and digest == wanted.digest:
        return Whose.AS_WANTED
    return Whose.OURS if digest in ours else Whose.ANOTHER


def vectors_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """What it says of the vectors: the same for the same ones, whenever and by whom they are made."""
    return {key: manifest.get(key) for key in ("rows", "dimension", "digest", "fingerprint")}


def has_vectors(files: Any, address: str, vectors: dict[str, Any]) -> bool:
    """Whether what is there is a manifest of these vectors. Raises Halt (75, 78)."""

    def read() -> bytes:
        with files.open(bare(files, address), "rb") as there:
            return bytes(there.read(_LARGEST_MANIFEST_BYTES))

    try:
        manifest = json.loads(persistently(address, read))
    except (ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and vectors_of(manifest) == vectors


def digest_there(files: Any, address: str) -> str:
    """sha256 of a file there, hex, in bounded memory. Raises whatever the storage raises."""
    digest = hashlib.sha256()
    with files.open(bare(files, address), "rb", block_size=_BLOCK_BYTES) as there:
        while block := there.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def bare(files: Any, address: str) -> str:
    """As the file system itself names it."""
    return str(files._strip_protocol(address))


def refusal(address: str, names: Sequence[str]) -> Halt:
    """To replace the files of these names."""
    return config_error(
        f"{address} has files that this workdir has not put there, and that would be replaced: {listed(names, _NAMED)}",
        remedy="Choose another address for upload, or remove them there if they are not needed.",
    )
