"""The child's DuckDB connection, set up so that the same request always gives the same table, without the network."""

import errno
import os
import re
from pathlib import Path

import duckdb

from chunkvisor.store.disk import DISK_ERRNOS

_PYTHON_BYTES = 256 << 20
"""For the interpreter, its libraries and one batch of rows."""
_BYTES_PER_THREAD = 256 << 20
"""A thread holds row groups of parquet while it decodes them."""
_MAX_THREADS = 4
_DISK_PHRASES = ("No space left on device", "Disk quota exceeded", "Input/output error", "max_temp_directory_size")
_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def connect(memory_limit_bytes: int, temp_folder: Path) -> duckdb.DuckDBPyConnection:
    """An in-memory database that spills to `temp_folder`, under a limit for the whole process of about this size."""
    limit_bytes = max(memory_limit_bytes - _PYTHON_BYTES, memory_limit_bytes // 2)
    connection = duckdb.connect(
        config={
            "memory_limit": f"{limit_bytes >> 10}KiB",
            "temp_directory": str(temp_folder),
            "threads": max(1, min(_MAX_THREADS, len(os.sched_getaffinity(0)), limit_bytes // _BYTES_PER_THREAD)),
            "preserve_insertion_order": True,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            # An SQL expression must not reach the variables of this program by their names.
            "python_enable_replacements": False,
        }
    )
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    return connection


def is_disk_fault(error: BaseException) -> bool:
    """Whether the disk is full or failing, by errno or, from DuckDB, by the words."""
    if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
        return True
    return any(phrase in str(error) for phrase in _DISK_PHRASES)


def as_os_error(error: BaseException) -> OSError | None:
    """What the machine has refused; DuckDB has the reason in the words of strerror(3) alone. None for other errors."""
    if isinstance(error, OSError):
        return error
    if isinstance(error, duckdb.IOException):
        for number in _REFUSALS:
            if os.strerror(number) in str(error):
                named = re.search(r'"(/[^"]+)"', str(error))
                return OSError(number, os.strerror(number), named[1] if named else None)
    return None


def quoted(name: str) -> str:
    """The name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """The text as an SQL string."""
    return "'" + text.replace("'", "''") + "'"
