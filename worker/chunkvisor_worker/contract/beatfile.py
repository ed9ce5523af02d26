"""The file of a worker's beat, which is overwritten in its place.

A rename for each beat would be simpler. But ext4 writes to the disk before it lets one file replace another
(`auto_da_alloc`, ext4(5)): 0.2 to 0.6 ms and 4 KB for each of up to twenty beats a second. So a reader may meet a beat
half written: a checksum tells.
"""

import os
import zlib
from pathlib import Path

from chunkvisor_worker.contract.files import read_bounded, write_atomic
from chunkvisor_worker.contract.messages import Beat
from chunkvisor_worker.contract.wire import from_json, to_json

_SIZE_BYTES = 1024
"""Of the file: a beat takes half of it."""
_KEY = b',"crc32":"'
"""Comes last, over all before it."""
_PADDING = b"\n"


def write_beat(path: Path, beat: Beat) -> None:
    """Put the beat in the place of the one before. Raises OSError."""
    fields = to_json(beat).rstrip()[:-1]
    data = (fields + _KEY + _checksum(fields) + b'"}').ljust(_SIZE_BYTES, _PADDING)
    if not _overwritten(path, data):
        write_atomic(path, data, durable=False)


def read_beat(path: Path) -> Beat | None:
    """The beat in the file, None where there is none to be had; it may be written at this moment."""
    data = read_bounded(path)
    line = data.partition(b"\n")[0] if data else b""
    fields, key, checksum = line.rpartition(_KEY)
    whole = bool(key) and checksum == _checksum(fields) + b'"}'
    return from_json(Beat, line) if whole else None


def _checksum(line: bytes) -> bytes:
    return f"{zlib.crc32(line):08x}".encode()


def _overwritten(path: Path, data: bytes) -> bool:
    """Whether there was a beat of this size to be overwritten."""
    try:
        fd = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        return os.fstat(fd).st_size == len(data) and os.pwrite(fd, data, 0) == len(data)
    finally:
        os.close(fd)
