"""Source files elsewhere: whatever fsspec reads, such as s3:// and hf://."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from chunkvisor.errors import ExitCode, Halt, config_error
from chunkvisor_worker.contract.exits import DISK_ERRNOS

_BLOCK_BYTES = 16 << 20
# Keys of fsspec's `info` whose value changes with the content of a file; each file system has some
# of them, and the first that a file has is taken.
_TAGS = (
    "ETag",
    "etag",
    "blob_id",
    "md5Hash",
    "content_md5",
    "checksum",
    "sha256",
    "mtime",
    "LastModified",
    "created",
)

Answer = TypeVar("Answer")


def is_remote(source: str) -> bool:
    """Return whether it is an address, such as s3://bucket/key."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source) is not None


def expand_address(source: str) -> list[str]:
    """Return the addresses that a pattern matches, sorted; any other address is returned as it is.

    Raises Halt: 78 for what cannot be read, 75 if it cannot be reached.
    """
    if not re.search(r"[*\[]", source):  # a question mark begins the query of an http address
        return [source]
    files = _file_system(source)
    found = _ask_server(source, lambda: files.glob(files._strip_protocol(source), detail=True))
    names = sorted(name for name, info in found.items() if info.get("type") != "directory")
    return [str(files.unstrip_protocol(name)) for name in names]


def remote_state(address: str) -> list[str | int]:
    """Return [size_bytes, tag], which stay the same as long as the content does.

    Raises Halt as `expand_address`.
    """
    files = _file_system(address)
    info = _ask_server(address, lambda: files.info(files._strip_protocol(address)))
    if info.get("type") == "directory":
        raise config_error(
            f"{address} is a folder, not a file.", f"Name its files, e.g. {address}/*.csv"
        )
    return [
        int(info.get("size") or 0),
        next((str(info[key]) for key in _TAGS if info.get(key)), ""),
    ]


def download(address: str, target: Path) -> None:
    """Write the content at the address to a file.

    Raises Halt as `expand_address`, and 75 if another number of bytes came than the size says;
    OSError for the disk.
    """
    files = _file_system(address)
    size_bytes, _ = remote_state(address)

    def copy() -> int:
        name = files._strip_protocol(address)
        with files.open(name, "rb", block_size=_BLOCK_BYTES) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file, _BLOCK_BYTES)
            return file.tell()

    came = _ask_server(address, copy)
    if size_bytes not in (0, came):
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"{address} has {size_bytes:,} bytes, of which {came:,} came.",
            "Run again when nothing writes to it.",
        )


def _file_system(address: str) -> Any:
    try:
        import fsspec  # late: an optional dependency

        return fsspec.filesystem(
            address.split(":")[0], skip_instance_cache=True, use_listings_cache=False
        )
    # The last two: a file system that needs more than the address, such as ftp, github or zip.
    except (ImportError, ValueError, TypeError, OSError) as error:
        raise config_error(
            f"{address}: addresses of this kind cannot be read",
            "In the checkout of chunkvisor, run `pip install '.[remote]'`. Or copy the files to "
            "this machine.",
            why=str(error),
        ) from error


def _ask_server(address: str, action: Callable[[], Answer]) -> Answer:
    """Return what the action returns. It is tried once, since fsspec's libraries try again.

    Raises Halt: 78 for what cannot be read, 75 if it cannot be reached; OSError of a local disk.
    """
    try:
        return action()
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
            raise
        cause = error.__cause__ or error
        # The query of an address to which the server redirected may hold a signature.
        why = re.sub(
            r"(https?://[^\s?'\"]*)\?[^\s'\"]*", r"\1?…", f"{type(cause).__name__}: {cause}"
        )
        why = why.split("\n", 1)[0][:500]
        stays = FileNotFoundError | PermissionError | ImportError | ValueError | NotImplementedError
        # By name, since botocore, which raises these for missing credentials, may not be installed.
        if isinstance(error, stays) or re.search(
            "Credential|ProfileNotFound", type(error).__name__
        ):
            raise config_error(
                f"{address} cannot be read.",
                "Correct the address, or set AWS_PROFILE, HF_TOKEN or the like in chunkvisor's "
                "environment.",
                why=why,
            ) from error
        raise Halt(
            ExitCode.TRY_AGAIN,
            f"{address} cannot be reached.",
            "Run again; finished work is kept.",
            why=why,
        ) from error
