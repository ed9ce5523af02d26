"""Lines of a source file, plain or compressed, with their numbers; only a line feed ends one."""

import contextlib
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from chunkvisor.errors import Halt
from chunkvisor.ingest.problem import MAX_RECORD_BYTES, input_error
from chunkvisor.ingest.sources import Compression, SourceFile

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_BUFFER_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_COMPRESSED = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
"""First bytes of a compressed file -> how its name is to end."""
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError)


def lines(file: SourceFile, max_bytes: int = MAX_RECORD_BYTES) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of each line, its line feed included; a byte order mark at the start is dropped.

    Raises Halt (exit 78) for a file that cannot be opened, is empty or damaged, or has a line above `max_bytes`.
    """
    number, empty = 0, True
    with _open(file) as stream:
        try:
            while line := stream.readline(max_bytes + 2):  # room for a carriage return and a line feed
                number += 1
                if number == 1:
                    _refuse_disguised(file.path, line)
                    line = line.removeprefix(_BOM)
                if not line:
                    break
                empty = False
                if len(line) > max_bytes and not line.endswith(b"\n"):
                    raise input_error(
                        file.path,
                        f"the line is longer than {max_bytes:,} bytes, the most that is read.",
                        line=number,
                        remedy="Correct or shorten it in the source; most such lines are damaged.",
                    )
                yield number, line
        except _DAMAGE as error:
            raise input_error(
                file.path,
                f"the {file.compression} data is damaged or cut short: {error}",
                why=f"It was noticed after line {number}.",
                remedy="Copy or compress the file again.",
            ) from error
    if empty:
        raise input_error(file.path, "the file is empty.", remedy="Remove it from the sources, or fill it.")


def _refuse_disguised(path: Path, line: bytes) -> None:
    """Refuse a file whose first bytes are not those of UTF-8 text, though they may be valid UTF-8. Raises Halt (78)."""
    for magic, suffix in _COMPRESSED.items():
        if line.startswith(magic):
            raise input_error(
                path,
                f"the file is compressed, which a name ending with {suffix} would say.",
                remedy=f"Rename it to {path.name}{suffix}, or unpack it.",
            )
    head = line.rstrip(b"\n")[:8]
    for kind, letters, zeros in (("UTF-16LE", head[::2], head[1::2]), ("UTF-16BE", head[1::2], head[::2])):
        if len(head) >= 4 and all(letters) and not any(zeros):
            raise input_error(
                path,
                "every second byte is zero: it looks like UTF-16.",
                line=1,
                remedy=f"Convert the file, e.g. iconv -f {kind} -t UTF-8",
            )


def decode(path: Path, number: int, line: bytes) -> str:
    """The line as text. Raises Halt (exit 78) where it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(path, number, line, error) from error


def not_utf8(path: Path, number: int, line: bytes, error: UnicodeDecodeError) -> Halt:
    """The Halt for a line that is not UTF-8."""
    wide = number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff")
    return input_error(
        path,
        f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line.",
        line=number,
        why="It looks like UTF-16." if wide else "",
        remedy=f"Convert the file, e.g. iconv -f {'UTF-16' if wide else 'LATIN1'} -t UTF-8",
    )


@contextlib.contextmanager
def _open(file: SourceFile) -> Iterator[io.BufferedIOBase]:
    try:
        raw = open(file.path, "rb", buffering=0)  # noqa: SIM115 - closed below
    except OSError as error:
        raise input_error(
            file.path, f"the file cannot be read: {error.strerror}.", remedy="Check its permissions."
        ) from error
    unpacked: io.FileIO | gzip.GzipFile | zstd.ZstdFile = raw
    with raw:  # neither gzip nor zstd closes what it is given
        match file.compression:
            case Compression.GZIP:
                unpacked = gzip.GzipFile(fileobj=raw, mode="rb")
            case Compression.ZSTD:
                unpacked = zstd.ZstdFile(raw, "r")
        with io.BufferedReader(unpacked, _BUFFER_BYTES) as stream:
            yield stream
