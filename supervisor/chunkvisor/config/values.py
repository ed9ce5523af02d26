"""The kinds of value that config keys hold.

A wrong value raises pydantic's own error, or one of type `refused` with a sentence; `load` makes messages of them.
"""

import glob
import os
import re
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
    StrictStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import PydanticCustomError

SENTENCE_TRANSFORMERS = "sentence-transformers"
"""The value of `model.encoder` that is not a plug-in."""

MOST_SHARDS = 10_000
"""Their names have four digits, so that names sort as numbers do."""

_MOST = 1_000_000_000  # far above any sensible count; keeps arithmetic and 64-bit columns downstream safe
_OWN_COLUMNS = ("row", "source_row", "vector")
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
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


def _matching(pattern: str, what: str) -> AfterValidator:
    """Refuse text that is not `what`: that a pattern does not match says nothing to a reader."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise refused(f"should be {what}")
        return text

    return AfterValidator(check)


def _number(value: Any) -> Any:
    """Read numbers as people write them: "1_000", "1e3" and 1000.0 are 1000; anything else is left as it is."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() and value <= _MOST else value


def seconds(value: Any) -> Any:
    """Read seconds from a number or from text like "10m"."""
    if isinstance(value, str):
        match = re.fullmatch(r"(.+?) ?([smhd]?)", value)
        count = _number(match[1]) if match else value
        if match is None or isinstance(count, str):
            raise refused('should be a number of seconds, or a time like "90s", "10m" or "2h"')
        return count * _UNITS_S[match[2]]
    return _number(value)


def empty(value: Any) -> Any:
    """Take null for an empty section: its keys are all commented out."""
    return {} if value is None else value


OR_NULL = BeforeValidator(empty)


_ONE_OR_MORE = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
"""Lets one text stand for a list of one."""


def _system_text(text: str) -> str:
    """Pass text that system calls take, without a NUL or a lone surrogate."""
    try:
        if b"\0" not in os.fsencode(text):
            return text
    except UnicodeEncodeError:
        pass
    raise refused("has a character that no path or variable can hold")


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


def _path(text: str) -> str:
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


def _some(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise refused("should not be empty")
    return values


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise refused("should have each output once")
    return names


def _env_name(name: str) -> str:
    if name in _OWNED_ENV:
        raise refused(_OWNED_ENV[name])
    return name


def _env_value(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


_AS_WRITTEN = BeforeValidator(_number)
Name = Annotated[StrictStr, Field(min_length=1)]
Flag = StrictBool
Positive = Annotated[int, Field(strict=True, ge=1, le=_MOST), _AS_WRITTEN]
PositiveOrAuto = Positive | Literal["auto"]
NotNegative = Annotated[int, Field(strict=True, ge=0, le=_MOST), _AS_WRITTEN]
UpToEight = Annotated[int, Field(strict=True, ge=0, le=8), _AS_WRITTEN]
OneToSixteen = Annotated[int, Field(strict=True, ge=1, le=16), _AS_WRITTEN]
Shards = Annotated[int, Field(strict=True, ge=1, le=MOST_SHARDS), _AS_WRITTEN]
Seconds = Annotated[float, Field(strict=True, gt=0, le=30 * 86_400, allow_inf_nan=False), BeforeValidator(seconds)]
Memory = Annotated[ByteSize, Field(ge=64 << 20, le=1 << 50)]
PlainValues = Annotated[dict[StrictStr, JsonValue], OR_NULL]
Encoder = Annotated[
    StrictStr,
    _matching(
        rf"{SENTENCE_TRANSFORMERS}|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*",
        f'"{SENTENCE_TRANSFORMERS}" or "package.module:factory"',
    ),
]
_Device = Annotated[
    StrictStr, _matching(r"cpu|cuda(:(0|[1-9][0-9]{0,3}))?", '"cuda", "cuda:N" or "cpu", or a list of GPUs')
]
Devices = Annotated[tuple[_Device, ...], AfterValidator(_one_kind), AfterValidator(_some), _ONE_OR_MORE]
# Secret, as most addresses hold a token or a password.
Addresses = Annotated[tuple[Annotated[SecretStr, Field(min_length=1)], ...], Field(max_length=20), _ONE_OR_MORE]
Columns = Annotated[tuple[Name, ...], AfterValidator(_carried), _ONE_OR_MORE]
EnvName = Annotated[
    StrictStr, AfterValidator(_env_name), _matching("[A-Za-z_][A-Za-z0-9_]*", "a name for an environment variable")
]
EnvValue = Annotated[StrictStr, AfterValidator(_system_text), BeforeValidator(_env_value)]
OutputName = Annotated[StrictStr, _matching("[A-Za-z0-9_-]{1,100}", "letters, digits, _ and - (100 at most)")]
OutputNames = Annotated[tuple[StrictStr, ...], Field(min_length=2), AfterValidator(_distinct)]
FilePath = Annotated[
    Path, BeforeValidator(joined), BeforeValidator(TypeAdapter(Annotated[Name, AfterValidator(_path)]).validate_python)
]
PromFile = Annotated[FilePath, AfterValidator(_prom)]
Folder = FilePath
Folders = Annotated[tuple[FilePath, ...], Field(max_length=100), _ONE_OR_MORE]
Sources = Annotated[tuple[Annotated[Name, AfterValidator(_source)], ...], AfterValidator(_some), _ONE_OR_MORE]


def seconds_of(value: object) -> float:
    """Read a time that is not in a config: an option or an argument. Raises ValueError, with words."""
    try:
        return TypeAdapter(Seconds).validate_python(value)
    except ValidationError:
        raise ValueError(f'{value!r} is not a time; write seconds, or "90s", "10m" or "3h"') from None
