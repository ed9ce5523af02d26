"""The kinds of value that config keys hold, each with the one sentence that says what would be right.

A wrong value is an error of type `expected` (context: `what` would be right), `too_large` (`most`) or `refused` (a
`sentence` of its own).
"""

import glob
import json
import keyword
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
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


def refused(sentence: str, *, of_section: bool = False) -> PydanticCustomError:
    """An error with its own sentence; `of_section`: it is about the whole section of the key, not the key alone."""
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence, "of_section": of_section})


def expected(what: str, *, text: bool = False) -> WrapValidator:
    """One sentence for all that can be wrong with a value; `text`: quotes would mend a number or a yes/no."""

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            for item in error.errors():
                if item["type"] == "refused":
                    raise
                if item["type"] == "less_than_equal":
                    most = f"{item['ctx']['le']:,}"
                    raise PydanticCustomError("too_large", "is too large; {most} is the most", {"most": most}) from None
            raise PydanticCustomError("expected", "should be {what}", {"what": what, "text": text}) from None

    return WrapValidator(validate)


def of_two(section: type[BaseModel], otherwise: Any) -> WrapValidator:
    """A mapping is the section, anything else the other: only what is wrong with that one is told."""
    other: TypeAdapter[Any] = TypeAdapter(otherwise)

    def validate(value: Any, _: Callable[[Any], Any], info: ValidationInfo) -> Any:
        if isinstance(value, dict | section):
            return section.model_validate(value, context=info.context)
        return other.validate_python(value, context=info.context)

    return WrapValidator(validate)


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


def _folder_address(text: str, info: ValidationInfo) -> str:
    if _ADDRESS.match(text) is None or re.search(r"[*?\[]", text):
        raise ValueError(text)
    return _file_or_address(text, info).rstrip("/")


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


def list_of_one(value: Any) -> Any:
    """One of something stands for a list of one."""
    return [value] if isinstance(value, str) else value


def _system_text(text: str) -> str:
    """Text that system calls take; raises ValueError for a NUL or a lone surrogate."""
    if b"\0" in os.fsencode(text):
        raise ValueError(text)
    return text


def joined(text: str, info: ValidationInfo) -> str:
    """`text` as an absolute path relative to the folder in the validation context (else the current one).

    Where `text` is a pattern and no file has that very name, the folder's own name is escaped, so that the result
    can be given to `glob`.
    """
    folder = str(Path((info.context or {}).get("folder", "")).absolute())
    own = Path(os.path.expanduser(_system_text(text)))  # noqa: PTH111 - Path.expanduser raises where there is no home
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
_AS_WRITTEN = BeforeValidator(number)
_Count = Annotated[StrictInt, Field(ge=1, le=_MOST), _AS_WRITTEN]
Positive = Annotated[_Count, expected("a positive whole number")]
PositiveOrNull = Annotated[_Count | None, expected("a positive whole number or null")]
PositiveOrAuto = Annotated[_Count | Literal["auto"], expected('a positive whole number or "auto"')]
PositiveAutoOrNull = Annotated[_Count | Literal["auto"] | None, expected('a positive whole number, "auto" or null')]
NotNegativeOrAuto = Annotated[
    Annotated[StrictInt, Field(ge=0, le=_MOST), _AS_WRITTEN] | Literal["auto"],
    expected('a whole number, 0 or more, or "auto"'),
]
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
Addresses = Annotated[
    tuple[Annotated[SecretStr, Field(min_length=1)], ...],
    Field(max_length=20),
    BeforeValidator(list_of_one),
    expected("an address such as mailto://… or json://…, or a list of up to 20", text=True),
]
"""Secret: most hold a token or a password."""
Sources = Annotated[
    tuple[Annotated[Name, AfterValidator(_file_or_address)], ...],
    Field(min_length=1),
    BeforeValidator(list_of_one),
    expected("a file, a pattern, an address, a list of them, or {database: FILE, query: SELECT …}", text=True),
]
FolderAddress = Annotated[
    Name,
    AfterValidator(_folder_address),
    expected("the address of a folder, such as s3://bucket/embeddings", text=True),
]
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
    AfterValidator(_system_text),
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
