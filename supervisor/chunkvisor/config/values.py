"""The kinds of value that config keys hold, each with the words that say what would be right.

A wrong value raises pydantic's own error, or one of type `expected` (context: `what` would be right) or `refused` (a
`sentence`); `load` makes messages of them.
"""

import glob
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    JsonValue,
    SecretStr,
    StrictBool,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

SENTENCE_TRANSFORMERS = "sentence-transformers"
"""The value of `model.encoder` that is not a plug-in."""

MOST_SHARDS = 10_000
"""Their names have four digits, so that names sort as numbers do."""

_MOST = 1_000_000_000  # far above any sensible count; keeps arithmetic and 64-bit columns downstream safe
_OWN_COLUMNS = ("row", "source_row", "vector")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)")
_SECRET_ARGUMENT = re.compile(r"[?&][^=&]*(signature|sig|token|key|secret|password|credential)[^=&]*=", re.IGNORECASE)
_GPU = "chunkvisor sets it for every worker; choose the GPU with the key device"
_OFFLINE = "workers run offline once the model is resolved; set HF_HUB_OFFLINE in the environment of chunkvisor itself"
_OWNED_ENV = {
    "CUDA_VISIBLE_DEVICES": _GPU,
    "CUDA_DEVICE_ORDER": _GPU,
    "HF_HUB_OFFLINE": _OFFLINE,
    "TRANSFORMERS_OFFLINE": _OFFLINE,
}


def refused(sentence: str, *, of_section: bool = False) -> PydanticCustomError:
    """Make an error with a given sentence; `of_section`: it is about the key's whole section."""
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence, "of_section": of_section})


def expected(what: str) -> WrapValidator:
    """Give one sentence for all that can be wrong with a value, where pydantic would have one for each alternative."""

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            if any(item["type"] == "refused" for item in error.errors()):
                raise
            raise PydanticCustomError("expected", "should be {what}", {"what": what}) from None

    return WrapValidator(validate)


def _number(value: Any) -> Any:
    """Read numbers as people write them: "1_000", "1e3" and 1000.0 are 1000; anything else is left as it is."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def seconds(value: Any) -> Any:
    """Read seconds from a number or from text like "10m"."""
    if isinstance(value, str) and (match := re.fullmatch(r"(.+?) ?([smhd])", value)):
        count = _number(match[1])
        return value if isinstance(count, str) else count * _UNITS_S[match[2]]
    return _number(value)


def empty(value: Any) -> Any:
    """Take null for an empty section: its keys are all commented out."""
    return {} if value is None else value


OR_NULL = BeforeValidator(empty)


_ONE_OR_MORE = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
"""Lets one text stand for a list of one."""


def _system_text(text: str) -> str:
    """Pass text that system calls take; raises ValueError for a NUL or a lone surrogate."""
    if b"\0" in os.fsencode(text):
        raise ValueError(text)
    return text


def joined(text: str, info: ValidationInfo) -> str:
    """Make the path absolute, relative to the folder in the validation context (else to the current one)."""
    folder = str(Path((info.context or {}).get("folder", "")).absolute())
    own = Path(os.path.expanduser(_system_text(text)))  # noqa: PTH111 - Path.expanduser raises if there is no home
    while own.parts[:1] == ("..",):  # a/../b is not b if a is a symbolic link
        folder = os.path.dirname(os.path.realpath(folder))  # noqa: PTH120 - of a str; Path.resolve raises for a loop
        own = Path(*own.parts[1:])
    if glob.has_magic(str(own)) and not os.path.lexists(Path(folder, own)):
        folder = glob.escape(folder)  # only what the person wrote is a pattern
    return str(Path(folder, own))


def _path(text: Any) -> str:
    if not isinstance(text, str) or not text:
        raise ValueError(text)
    if address := _ADDRESS.match(text):
        raise refused(f"{address[1]}:// is the address of something elsewhere; name a path on this machine")
    if variable := re.search(r"(^|/)(\$\w+|\$\{\w+\})", text):
        raise refused(f"{variable[2]} is not replaced in a config; write the path itself, or ~ for your home folder")
    return text


def _source(text: str, info: ValidationInfo) -> str:
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
    return text


def _prom(path: Path) -> Path:
    if path.suffix != ".prom":
        raise refused("must end in .prom: node_exporter reads no other file")
    return path


def _one_kind(devices: tuple[str, ...]) -> tuple[str, ...]:
    if len(devices) > 1 and "cpu" in devices:
        raise refused("cpu does not go together with other devices: their vectors differ in the last digits")
    return devices


def _carried(names: tuple[str, ...]) -> tuple[str, ...]:
    folded = [name.casefold() for name in names]
    for name in names:
        if name.casefold() in _OWN_COLUMNS:
            raise refused(f"{name} is a column that chunkvisor writes itself; rename it in the source")
        if folded.count(name.casefold()) > 1:
            raise refused(f"{name} is there twice, and readers do not tell upper from lower case")
    return names


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError(names)
    return names


def _env_name(name: str) -> str:
    if name in _OWNED_ENV:
        raise refused(_OWNED_ENV[name])
    return name


def _env_value(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    json.dumps(values, allow_nan=False)  # raises ValueError: NaN equals nothing, not even itself at a resume
    return values


_AS_WRITTEN = BeforeValidator(_number)
_Count = Annotated[StrictInt, Field(ge=1, le=_MOST), _AS_WRITTEN]
_COUNT = f"a whole number from 1 to {_MOST:,}"
Name = Annotated[StrictStr, Field(min_length=1)]
Flag = StrictBool
Positive = Annotated[_Count, expected(_COUNT)]
PositiveOrNull = Annotated[_Count | None, expected(f"{_COUNT}, or null")]
PositiveOrAuto = Annotated[_Count | Literal["auto"], expected(f'{_COUNT}, or "auto"')]
PositiveAutoOrNull = Annotated[_Count | Literal["auto"] | None, expected(f'{_COUNT}, or "auto" or null')]
NotNegative = Annotated[StrictInt, Field(ge=0, le=_MOST), _AS_WRITTEN, expected("a whole number, 0 or more")]
UpToEight = Annotated[StrictInt, Field(ge=0, le=8), _AS_WRITTEN, expected("a whole number from 0 to 8")]
OneToSixteen = Annotated[StrictInt, Field(ge=1, le=16), _AS_WRITTEN, expected("a whole number from 1 to 16")]
Shards = Annotated[
    Annotated[StrictInt, Field(ge=1, le=MOST_SHARDS), _AS_WRITTEN] | None,
    expected("a whole number from 1 to 10,000, or null"),
]
Seconds = Annotated[
    float,
    Field(strict=True, gt=0, le=30 * 86_400, allow_inf_nan=False),
    BeforeValidator(seconds),
    expected('a positive number of seconds, or a time like "90s", "10m" or "2h"'),
]
Memory = Annotated[
    ByteSize, Field(ge=64 << 20, le=1 << 50), expected('a size of at least 64 MiB, in bytes or like "1GiB"')
]
PlainValues = Annotated[
    dict[StrictStr, JsonValue],
    AfterValidator(_finite),
    OR_NULL,
    expected("a mapping with plain values only (text, finite numbers, true, false, null, lists, mappings)"),
]
Encoder = Annotated[
    StrictStr,
    Field(pattern=rf"^({SENTENCE_TRANSFORMERS}|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*)$"),
    expected(f'"{SENTENCE_TRANSFORMERS}" or "package.module:factory"'),
]
_Device = Annotated[StrictStr, Field(pattern=r"^(cpu|cuda(:(0|[1-9][0-9]{0,3}))?)$")]
Devices = Annotated[
    tuple[_Device, ...],
    Field(min_length=1),
    AfterValidator(_one_kind),
    _ONE_OR_MORE,
    expected('"cuda", "cuda:N" or "cpu", or a list of GPUs'),
]
# Secret, as most addresses hold a token or a password.
_Secret = Annotated[SecretStr, Field(min_length=1)]
Addresses = Annotated[
    tuple[_Secret, ...],
    Field(max_length=20),
    _ONE_OR_MORE,
    expected("an address such as mailto://… or json://…, or a list of up to 20"),
]
Columns = Annotated[
    tuple[Name, ...],
    AfterValidator(_carried),
    _ONE_OR_MORE,
    expected("the name of a column, or a list of them, as text"),
]
EnvName = Annotated[
    StrictStr,
    Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$"),
    AfterValidator(_env_name),
    expected("a name for an environment variable"),
]
EnvValue = Annotated[
    StrictStr,
    AfterValidator(_system_text),
    BeforeValidator(_env_value),
    expected("text that an environment variable can hold"),
]
OutputName = Annotated[
    StrictStr, Field(pattern=r"^[A-Za-z0-9_-]{1,100}$"), expected("a name of letters, digits, _ and - (at most 100)")
]
OutputNames = Annotated[
    tuple[StrictStr, ...],
    Field(min_length=2),
    AfterValidator(_distinct),
    expected("a list of two outputs or more, each of them once"),
]
_Path = Annotated[Path, BeforeValidator(joined), BeforeValidator(_path)]
Folder = Annotated[_Path, expected("the path of a folder")]
Folders = Annotated[tuple[_Path, ...], Field(max_length=100), _ONE_OR_MORE, expected("a folder, or a list of them")]
FilePath = Annotated[_Path, expected("the path of a file")]
PromFile = Annotated[FilePath, AfterValidator(_prom)]
Sources = Annotated[
    tuple[Annotated[Name, AfterValidator(_source)], ...],
    Field(min_length=1),
    _ONE_OR_MORE,
    expected("a file, a pattern, an address, or a list of them, as text"),
]


def seconds_of(value: object) -> float:
    """Read a time that is not in a config: an option or an argument. Raises ValueError, with words."""
    try:
        return TypeAdapter(Seconds).validate_python(value)
    except ValidationError:
        raise ValueError(f'{value!r} is not a time; write seconds, or "90s", "10m" or "3h"') from None
