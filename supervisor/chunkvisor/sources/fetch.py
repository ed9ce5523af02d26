"""Files elsewhere, at s3://, hf:// and what else fsspec reads: found, and fetched into the workdir."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from chunkvisor.errors import ExitCode, Halt, config_error

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SHOWN = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/(?=[^/])")
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Between one try and the next; each library has a few tries of its own before."""
_BLOCK_BYTES = 16 << 20
_TAGS = ("ETag", "etag", "blob_id", "md5Hash", "content_md5", "checksum", "sha256", "mtime", "LastModified", "created")
"""What tells one content from another, by the names that fsspec's file systems have for it; the first one counts."""
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, ImportError, ValueError, NotImplementedError)
_NO_RIGHTS = frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"})
"""Errors of botocore, by their names: nobody has said who we are."""
_NO_RIGHTS_STATUS = (401, 403)
_PASSING_STATUS = (408, 425, 429)
"""Of http, beside those from 500 on."""
_QUERY = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*")
"""Of an address that we were sent on to, it may be a signature."""

State = list[str | int]
Answer = TypeVar("Answer")


def is_remote(source: str) -> bool:
    """Whether it is an address, such as s3://bucket/key."""
    return _SCHEME.match(source) is not None


def shown(path: Path) -> str:
    """The path, or the address that it was made of: of `s3://bucket`, a Path keeps one slash."""
    return _SHOWN.sub(r"\1://", str(path))


def find(source: str) -> list[str]:
    """The addresses in the order of their rows: the one, or the matches of a pattern, sorted.

    Raises Halt: 78 for what is not there or may not be read, 75 for what cannot be reached.
    """
    if not re.search(r"[*\[]" if source.lower().startswith("http") else r"[*?\[]", source):
        return [source]
    files = file_system(source)
    found = persistently(source, lambda: files.glob(files._strip_protocol(source), detail=True))
    names = sorted(name for name, info in found.items() if info.get("type") != "directory")
    if not names:
        raise config_error(f"No file matches {source}.", remedy="Correct the pattern, or check that the files exist.")
    return [str(files.unstrip_protocol(name)) for name in names]


def state_of(address: str) -> State:
    """[address, size_bytes, tag, 0, 0]: the same as long as the content is. Raises Halt as `find`."""
    files = file_system(address)

    def look() -> Any:
        try:
            return files.info(files._strip_protocol(address))
        except FileNotFoundError as error:
            if isinstance(_behind(error), FileNotFoundError):
                return None
            raise

    info = persistently(address, look)
    if info is None:
        raise _refused(address, FileNotFoundError(address))
    if info.get("type") == "directory":
        raise config_error(f"{address} is a folder, not a file.", remedy=f"Name its files, e.g. {address}/*.csv")
    tag = next((str(info[key]) for key in _TAGS if info.get(key)), "")
    return [address, int(info.get("size") or 0), tag, 0, 0]


def fetch(address: str, target: Path, size_bytes: int) -> None:
    """Write the content to a new file, block by block; after a fault it goes on where it was.

    Raises Halt as `find`, and 75 where it has another size; OSError for the disk.
    """
    files = file_system(address)
    with open(target, "xb") as file:

        def read_on() -> None:
            with files.open(files._strip_protocol(address), "rb", block_size=_BLOCK_BYTES) as source:
                if file.tell():
                    source.seek(file.tell())
                while block := source.read(_BLOCK_BYTES):
                    _write(file, block)

        persistently(address, read_on, file.tell)
        if size_bytes not in (0, file.tell()):
            raise Halt(
                ExitCode.TRY_AGAIN,
                f"{address} has {size_bytes:,} bytes, of which {file.tell():,} came.",
                remedy="Run again when nothing writes to it.",
            )


class _DiskError(Exception):
    """The disk, not the network, has failed."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def _write(file: BinaryIO, block: bytes) -> None:
    try:
        file.write(block)
    except OSError as error:
        raise _DiskError(error) from error


def file_system(address: str) -> Any:
    """What reads and writes there. Raises Halt (78) where that is not installed."""
    match = _SCHEME.match(address)
    assert match is not None
    try:
        import fsspec

        return fsspec.filesystem(match[1], skip_instance_cache=True, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        package = _PACKAGES.get(match[1].lower())
        install = f"pip install {package}" if package not in (None, "s3fs") else "pip install 'chunkvisor[remote]'"
        raise config_error(
            f"{address}: what reads {match[1]}:// is not installed",
            why=str(error),
            remedy=f"{install}, or copy the files here",
        ) from error


def persistently(address: str, action: Callable[[], Answer], progress: Callable[[], int] = lambda: 0) -> Answer:
    """What the action gives, tried again after faults that may pass; only tries without progress are counted."""
    failed, before = 0, progress()
    while True:
        try:
            return action()
        except _DiskError as error:
            raise error.error from None
        except Halt:
            raise
        except Exception as error:
            met = _behind(error)
            if isinstance(met, _FINAL) or type(met).__name__ in _NO_RIGHTS:
                raise _refused(address, met) from error
            failed, before = failed + 1 if progress() == before else 1, progress()
            if failed > len(_PAUSES_S):
                raise Halt(
                    ExitCode.TRY_AGAIN,
                    f"{address} cannot be reached, in {failed} tries.",
                    why=_in_words(met),
                    remedy="Run again once it can be; what is staged and encoded is kept.",
                ) from error
            time.sleep(_PAUSES_S[failed - 1])


def _behind(error: Exception) -> Exception:
    """The error itself; or what is behind it, of an http address: fsspec calls a file missing whatever it has met.

    See `_info` in its implementations/http.py.
    """
    cause = error.__cause__
    of_http = isinstance(cause, TimeoutError) or type(cause).__module__.startswith("aiohttp")
    if not (isinstance(error, FileNotFoundError) and isinstance(cause, Exception) and of_http):
        return error
    status = getattr(cause, "status", None) or 0
    if status in _NO_RIGHTS_STATUS:
        return PermissionError(str(cause))
    return error if 400 <= status < 500 and status not in _PASSING_STATUS else cause


def _refused(address: str, error: Exception) -> Halt:
    if isinstance(error, FileNotFoundError):
        return config_error(f"There is no {address}.", remedy="Correct the address.")
    if isinstance(error, PermissionError) or type(error).__name__ in _NO_RIGHTS:
        return config_error(
            f"{address} may not be used.",
            why=_in_words(error),
            remedy="Say who you are in the environment of chunkvisor: AWS_PROFILE, AWS_ACCESS_KEY_ID, HF_TOKEN, …",
        )
    return config_error(f"{address} cannot be used.", why=_in_words(error), remedy="Correct the address.")


def _in_words(error: Exception) -> str:
    words = _QUERY.sub(r"\1?…", f"{type(error).__name__}: {error}")
    return words.split("\n", 1)[0][:500]
