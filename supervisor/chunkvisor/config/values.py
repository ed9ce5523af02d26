"""The kinds of value that config keys hold, each with the one sentence that says what would be right."""

import json
import keyword
import os
import re
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
)

from chunkvisor.config.sentences import expected, refused

SENTENCE_TRANSFORMERS = "sentence-transformers"
"""The value of `model.encoder` that is no plug-in."""

MOST_SHARDS = 10_000
"""Their names have four digits, so that names sort as numbers do."""

_OWN_COLUMNS = ("row", "source_row", "start_char", "end_char", "vector")

_MOST = 1_000_000_000  # far above any sensible count; keeps arithmetic and 64-bit columns downstream safe
_LONGEST_S = 30 * 86_400
_SMALLEST_MEMORY_BYTES = 64 << 20  # less is a mistyped unit, not a limit
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_OWNED_ENV = {
    "CUDA_VISIBLE_DEVICES": "chunkvisor sets it for every worker; choose the GPU with the key device",
    "CUDA_DEVICE_ORDER": "chunkvisor sets it for every worker; choose the GPU with the key device",
    "HF_HUB_OFFLINE": "workers run offline once the model is resolved; set it in the environment of chunkvisor itself",
    "TRANSFORMERS_OFFLINE": "workers run offline once the model is resolved; set HF_HUB_OFFLINE for chunkvisor itself",
}


def number(value: Any) -> Any:
    """Numbers as people write them: "1_000", "1e3" and 1000.0 are 1000; anything else is left as it is."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d[\d_]{0,20}(\.\d{0,20})?(e[-+]?\d{1,3})?", value, re.I | re.A):
        digits = value.replace("_", "")
        value = float(digits) if re.search("[.e]", digits, re.I) else int(digits)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def seconds(value: Any) -> Any:
    """Seconds of a number or of text like "10m"."""
    if isinstance(value, str) and (match := re.fullmatch(r"(.+?) ?([smhd]?)", value)):
        count = number(match[1])
        return value if isinstance(count, str) else count * _UNITS_S[match[2]]
    return value


def size_bytes(value: Any) -> Any:
    """Text as ByteSize reads it, which itself would overlook what follows the unit and take True for 1."""
    size = number(value)
    if isinstance(size, str) and re.fullmatch(r"\d{1,18}(\.\d{1,18})? ?([kmgt]i?)?b?", size, re.I | re.A):
        return size + "B" if size[-1] in "iI" else size
    return size if isinstance(size, int) and not isinstance(size, bool) else None


def empty(value: Any) -> Any:
    """A section whose keys are all commented out is null in YAML."""
    return {} if value is None else value


def list_of_one(value: Any) -> Any:
    """One of something stands for a list of one."""
    return [value] if isinstance(value, str) else value


def system_text(text: str) -> str:
    """Text that system calls take; raises ValueError for a NUL or a lone surrogate."""
    if b"\0" in os.fsencode(text):
        raise ValueError(text)
    return text


def _one_kind(devices: tuple[str, ...]) -> tuple[str, ...]:
    if len(devices) > 1 and "cpu" in devices:
        raise refused("cpu does not go together with other devices: their vectors differ in the last digits")
    return devices


def _encoder_shape(text: str) -> str:
    module, _, factory = text.partition(":")
    names = [*module.split("."), *factory.split(".")]
    if text != SENTENCE_TRANSFORMERS and not all(name.isidentifier() and not keyword.iskeyword(name) for name in names):
        raise ValueError(text)
    return text


def _carried(names: tuple[str, ...]) -> tuple[str, ...]:
    seen: set[str] = set()
    for name in names:
        if name.casefold() in _OWN_COLUMNS:
            raise refused(f"{name} is a column that chunkvisor writes itself; rename it in the source")
        if name.casefold() in seen:
            raise refused(f"{name} is there twice, and readers do not tell upper from lower case")
        seen.add(name.casefold())
    return names


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError(names)
    return names


def _env_name(name: str) -> str:
    if name in _OWNED_ENV:
        raise refused(_OWNED_ENV[name])
    return name


def env_value(value: Any) -> Any:
    """A number as text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    json.dumps(values, allow_nan=False)  # raises ValueError: NaN equals nothing, not even itself at a resume
    return values


Name = Annotated[StrictStr, Field(min_length=1)]
Flag = Annotated[StrictBool, expected("true or false")]
FlagOrNull = Annotated[StrictBool | None, expected("true, false or null")]
_AS_WRITTEN = BeforeValidator(number)
_Count = Annotated[StrictInt, Field(ge=1, le=_MOST), _AS_WRITTEN]
Positive = Annotated[_Count, expected("a positive whole number")]
PositiveOrNull = Annotated[_Count | None, expected("a positive whole number or null")]
PositiveOrAuto = Annotated[_Count | Literal["auto"], expected('a positive whole number or "auto"')]
PositiveAutoOrNull = Annotated[_Count | Literal["auto"] | None, expected('a positive whole number, "auto" or null')]
NotNegative = Annotated[StrictInt, Field(ge=0, le=_MOST), _AS_WRITTEN, expected("a whole number, 0 or more")]
UpToEight = Annotated[StrictInt, Field(ge=0, le=8), _AS_WRITTEN, expected("a whole number from 0 to 8")]
OneToSixteen = Annotated[StrictInt, Field(ge=1, le=16), _AS_WRITTEN, expected("a whole number from 1 to 16")]
Shards = Annotated[
    Annotated[StrictInt, Field(ge=1, le=MOST_SHARDS), _AS_WRITTEN] | None,
    expected("a whole number from 1 to 10,000, or null"),
]
Seconds = Annotated[
    float,
    Field(strict=True, gt=0, le=_LONGEST_S, allow_inf_nan=False),
    BeforeValidator(seconds),
    expected('a positive number of seconds, or a time like "90s", "10m" or "2h"'),
]


def seconds_of(value: object) -> float:
    """Seconds of a time that stands in no config: of an option, or of an argument. Raises ValueError, with words."""
    try:
        return TypeAdapter(Seconds).validate_python(value)
    except ValidationError:
        raise ValueError(f'{value!r} is no time; write seconds, or "90s", "10m" or "3h"') from None


_MemoryRange = Field(ge=_SMALLEST_MEMORY_BYTES, le=1 << 50)
Memory = Annotated[
    ByteSize,
    _MemoryRange,
    # In the schema, ByteSize itself would be any text that begins with a digit.
    BeforeValidator(size_bytes, json_schema_input_type=Annotated[int, _MemoryRange]),
    expected('a size of at least 64 MiB, in bytes or like "1GiB"'),
]
Encoder = Annotated[
    StrictStr,
    AfterValidator(_encoder_shape),
    expected(f'"{SENTENCE_TRANSFORMERS}" or "package.module:factory"', text=True),
]
PlainValues = Annotated[
    dict[StrictStr, JsonValue],
    AfterValidator(_finite),
    BeforeValidator(empty),
    expected("a mapping with plain values only (text, finite numbers, true, false, null, lists, mappings)"),
]
Devices = Annotated[
    tuple[Annotated[StrictStr, Field(pattern=r"^(cpu|cuda(:(0|[1-9][0-9]{0,3}))?)$")], ...],
    Field(min_length=1),
    AfterValidator(_one_kind),
    BeforeValidator(list_of_one),
    expected('"cuda", "cuda:N" or "cpu", or a list of GPUs'),
]


Addresses = Annotated[
    tuple[Annotated[SecretStr, Field(min_length=1)], ...],
    Field(max_length=20),
    BeforeValidator(list_of_one),
    expected("an address such as mailto://… or json://…, or a list of up to 20", text=True),
]
"""Secret: most hold a token or a password."""
Columns = Annotated[
    tuple[Name, ...],
    AfterValidator(_carried),
    BeforeValidator(list_of_one),
    expected("the name of a column, or a list of them", text=True),
]
EnvName = Annotated[
    StrictStr,
    Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$"),
    AfterValidator(_env_name),
    expected("a name for an environment variable"),
]
EnvValue = Annotated[
    StrictStr,
    AfterValidator(system_text),
    BeforeValidator(env_value),
    expected("text that an environment variable can hold", text=True),
]
OutputName = Annotated[
    StrictStr,
    Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}$"),
    expected("a name of letters, digits, _ - and . (at most 100, not starting with a dot)"),
]
OutputNames = Annotated[
    tuple[StrictStr, ...],
    Field(min_length=2),
    AfterValidator(_distinct),
    expected("a list of two outputs or more, each of them once"),
]
