"""The kinds of value that are paths and addresses: what a config names beside itself."""

import glob
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from chunkvisor.config.sentences import expected, refused
from chunkvisor.config.suffixes import AS_PARQUET
from chunkvisor.config.values import Name, list_of_one, system_text

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)")
_SECRET_ARGUMENT = re.compile(r"[?&][^=&]*(signature|sig|token|key|secret|password|credential)[^=&]*=", re.IGNORECASE)


def _file_or_address(text: str, info: ValidationInfo) -> str:
    """The path as `joined` has it, or an address as it stands."""
    address = _ADDRESS.match(text)
    if address is None:
        return joined(text, info)
    if address[1].lower() == "file":
        raise refused("file:// is not needed; name the path itself")
    if "@" in address[2] or _SECRET_ARGUMENT.search(text):
        raise refused(
            "this address holds a password, a key or a token, and would be repeated in manifests; leave it out, and "
            "set it in the environment of chunkvisor, as AWS_SECRET_ACCESS_KEY or HF_TOKEN"
        )
    if not address[2]:
        raise refused(f"{address[1]}:// needs a name behind it")
    return text


def _no_query(value: Any) -> Any:
    if isinstance(value, dict):
        instead = AS_PARQUET[0].lower() + AS_PARQUET[1:].removesuffix(".")
        raise refused(f"a query over a database is no longer a source: {instead}")
    return value


def _no_address(text: str) -> str:
    if _ADDRESS.match(text):
        raise refused(f"{text.split('://')[0]}:// is the address of something elsewhere; name a path on this machine")
    return text


def _plain_path(text: str) -> str:
    """A path as the file system takes it: no address, and nothing that only a shell would replace."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        words = f"its name cannot be written in the encoding of this locale, {sys.getfilesystemencoding()}"
        raise refused(f"{words}; set LC_ALL=C.UTF-8") from None
    first = _no_address(text).split("/", 1)[0]
    if variable := re.search(r"(^|/)(\$\w+|\$\{\w+\})", text):
        raise refused(f"{variable[2]} is not replaced in a config; write the path itself, or ~ for your home folder")
    if first.startswith("~") and os.path.expanduser(first) == first:  # noqa: PTH111 - Path.expanduser raises for it
        raise refused(f"there is no user {first[1:]!r}, so {first} is no folder; for a folder of that name: ./{first}")
    return text


def joined(text: str, info: ValidationInfo) -> str:
    """`text` as an absolute path relative to the folder in the validation context (else the current one).

    Where `text` is a pattern and no file has that very name, the folder's own name is escaped, so that the result
    can be given to `glob`.
    """
    folder = str(Path((info.context or {}).get("folder", "")).absolute())
    own = Path(os.path.expanduser(system_text(text)))  # noqa: PTH111 - Path.expanduser raises where there is no home
    while own.parts[:1] == ("..",):  # a/../b is not b where a is a symbolic link
        folder = os.path.dirname(os.path.realpath(folder))  # noqa: PTH120 - of a str; Path.resolve raises for a loop
        own = Path(*own.parts[1:])
    if glob.has_magic(str(own)) and not os.path.exists(Path(folder, own)):  # noqa: PTH110 - Path.exists raises for long names
        folder = glob.escape(folder)
    return str(Path(folder, own))


def _text(value: Any) -> Any:
    if not isinstance(value, str) or not value:
        raise ValueError(value)
    return value


def _prom(path: Path) -> Path:
    if path.suffix != ".prom":
        raise refused("must end in .prom: node_exporter reads no other file")
    return path


_PlainPath = Annotated[Path, BeforeValidator(joined), BeforeValidator(_plain_path), BeforeValidator(_text)]
Folder = Annotated[_PlainPath, expected("the path of a folder", text=True)]
Folders = Annotated[
    tuple[_PlainPath, ...],
    Field(max_length=100),
    BeforeValidator(list_of_one),
    expected("a folder, or a list of them", text=True),
]
FilePath = Annotated[_PlainPath, expected("the path of a file", text=True)]
PromFile = Annotated[FilePath, AfterValidator(_prom)]
"""node_exporter reads no other."""
Sources = Annotated[
    tuple[Annotated[Name, AfterValidator(_file_or_address)], ...],
    Field(min_length=1),
    BeforeValidator(list_of_one),
    BeforeValidator(_no_query),
    expected("a file, a pattern, an address, or a list of them", text=True),
]
