"""The configuration of a run as a validated, frozen model, and what workers get of it.

The docstring of a key is its description in docs/reference/config.md. A wrong value raises
pydantic's own error, or a ValueError with a sentence; `load` puts the key and its place before it.
"""

import glob
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    JsonValue,
    SecretStr,
    StrictBool,
    StrictStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from chunkvisor.config.choices import Dtype, EngineKind, FinalDtype, FinalFormat, OnBadRow, Start
from chunkvisor.units import did_you_mean
from chunkvisor_worker.contract.messages import EncodeSpec, Limits
from chunkvisor_worker.contract.secrets import SECRETS, SIGNED, digested

SENTENCE_TRANSFORMERS = "sentence-transformers"
"""The value of `model.encoder` for a model of sentence-transformers; all others name plug-ins."""

# Far above any sensible count, and its square fits in 64 bits.
_MOST = 1_000_000_000
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)")
_OWNED_ENV = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")

# --- kinds of value


def _unless(is_wrong: Callable[[Any], bool], sentence: str) -> AfterValidator:
    """Refuse a value with a sentence; `load` puts the value before "should" and "has"."""

    def check(value: Any) -> Any:
        if is_wrong(value):
            raise ValueError(sentence)
        return value

    return AfterValidator(check)


def _matching(pattern: str, what: str) -> AfterValidator:
    """Refuse a text that the pattern does not match as a whole: it should be `what`."""
    return _unless(lambda text: re.fullmatch(pattern, text) is None, f"should be {what}")


def seconds(value: Any) -> Any:
    """Make seconds of a text such as "10m"; return other kinds of value, which pydantic checks."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([smhd]?)", value)
    if match is None:
        raise ValueError('should be a number of seconds, or a time like "90s", "10m" or "2h"')
    return float(match[1]) * _UNITS_S[match[2]]


# Null is an empty section: its keys are all commented out.
_OR_NULL = BeforeValidator(lambda value: {} if value is None else value)
_ONE_OR_MORE = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)


def _absolute(text: str, info: ValidationInfo) -> str:
    """Make the path absolute.

    It is relative to the folder in the validation context, else to the current one.
    """
    folder = str(Path((info.context or {}).get("folder", "")).absolute())
    own = os.path.expanduser(text)  # noqa: PTH111 - Path.expanduser raises if there is no home
    if own.startswith(".."):  # a/../b is not b if a is a symbolic link
        folder = os.path.realpath(folder)
    if glob.has_magic(own) and not os.path.lexists(Path(folder, own)):
        folder = glob.escape(folder)  # only what the person wrote is a pattern
    return os.path.normpath(Path(folder, own))


def _path(text: str) -> str:
    """Refuse an address and a shell variable; return other texts, which are paths."""
    address = _ADDRESS.match(text)
    if address:
        raise ValueError(
            f"{address[1]}:// is the address of something elsewhere; name a path on this machine"
        )
    variable = re.search(r"(^|/)(\$\w+|\$\{\w+\})", text)
    if variable:
        raise ValueError(
            f"{variable[2]} is not replaced in a config; write the path itself, or ~ for your home "
            f"folder"
        )
    return text


def _source(text: str, info: ValidationInfo) -> str:
    """Make a path absolute; return an address that holds no secret."""
    if not _ADDRESS.match(text):
        return _absolute(text, info)
    return _no_secret(text)


def _no_secret(text: str) -> str:
    """Refuse an address such as s3://KEY:SECRET@bucket; return any other text."""
    address = _ADDRESS.match(text)
    if address and ("@" in address[2] or SIGNED.search(text)):
        raise ValueError(
            "this address has a password, a key or a token in it, which would stand in manifests; "
            "set it in the environment of chunkvisor, as AWS_SECRET_ACCESS_KEY or HF_TOKEN"
        )
    return text


# pydantic would take true for 1.
_NO_BOOL = BeforeValidator(lambda value: str(value) if isinstance(value, bool) else value)
_NOT_EMPTY = _unless(lambda values: not values, "should not be empty")
Name = Annotated[StrictStr, Field(min_length=1, pattern=r"^[^\x00]*$")]
Positive = Annotated[int, Field(ge=1, le=_MOST), _NO_BOOL]
PositiveOrAuto = Positive | Literal["auto"]
# So that the batch log of a chunk, and the list of its bad texts, are below READ_LIMIT_BYTES.
ChunkSize = Annotated[int, Field(ge=1, le=100_000), _NO_BOOL] | Literal["auto"]
Seconds = Annotated[
    float, Field(strict=True, gt=0, le=30 * 86_400, allow_inf_nan=False), BeforeValidator(seconds)
]
Memory = Annotated[ByteSize, Field(ge=64 << 20, le=1 << 50)]
PlainValues = Annotated[dict[StrictStr, JsonValue], _OR_NULL]
Encoder = Annotated[
    StrictStr,
    _matching(
        rf"{SENTENCE_TRANSFORMERS}|[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*",
        f'"{SENTENCE_TRANSFORMERS}" or "package.module:factory"',
    ),
]
_Device = Annotated[
    StrictStr,
    _matching(r"cpu|cuda(:(0|[1-9][0-9]{0,3}))?", '"cuda", "cuda:N" or "cpu", or a list of GPUs'),
]
_ONE_KIND = "cpu does not go together with other devices: their vectors differ in the last digits"
Devices = Annotated[
    tuple[_Device, ...],
    _unless(lambda found: len(found) > 1 and "cpu" in found, _ONE_KIND),
    _NOT_EMPTY,
    _ONE_OR_MORE,
]
# Secret, as most addresses hold a token or a password.
Addresses = Annotated[
    tuple[Annotated[SecretStr, Field(min_length=1)], ...], Field(max_length=20), _ONE_OR_MORE
]
Columns = Annotated[
    tuple[Name, ...],
    _unless(
        lambda names: (
            len({name.casefold() for name in names} - {"row", "source_row", "vector"}) < len(names)
        ),
        "should have each column once, and not row, source_row or vector, which a run writes",
    ),
    _ONE_OR_MORE,
]
EnvName = Annotated[
    StrictStr,
    _unless(
        _OWNED_ENV.__contains__, "chunkvisor sets this itself; choose GPUs with the key `device`"
    ),
    _matching("[A-Za-z_][A-Za-z0-9_]*", "a name for an environment variable"),
]
EnvValue = Annotated[StrictStr, Field(pattern=r"^[^\x00]*$")]
OutputName = Annotated[
    StrictStr, _matching("[A-Za-z0-9_-]{1,100}", "letters, digits, _ and - (100 at most)")
]
OutputNames = Annotated[
    tuple[StrictStr, ...],
    Field(min_length=2),
    _unless(lambda names: len(set(names)) < len(names), "should have each output once"),
]
FilePath = Annotated[
    Path,
    BeforeValidator(_absolute),
    BeforeValidator(TypeAdapter(Annotated[Name, AfterValidator(_path)]).validate_python),
]
PromFile = Annotated[
    FilePath,
    _unless(
        lambda path: path.suffix != ".prom", "must end in .prom: node_exporter reads no other file"
    ),
]
Folders = Annotated[tuple[FilePath, ...], Field(max_length=100), _ONE_OR_MORE]
Sources = Annotated[tuple[Annotated[Name, AfterValidator(_source)], ...], _NOT_EMPTY, _ONE_OR_MORE]


def seconds_of(value: object) -> float | None:
    """Return the seconds of an option or an argument, such as "10m"; None stays None.

    Raises ValueError with a sentence.
    """
    try:
        return TypeAdapter[float | None](Seconds | None).validate_python(value)
    except ValidationError:
        raise ValueError(
            f'{value!r} is not a time; write seconds, or "90s", "10m" or "3h"'
        ) from None


AUTO_ROWS = 32
"""Rows of a batch without a token budget, as in sentence-transformers."""

AUTO_TOKENS = {"cpu": 2048, "cuda": 32768}
"""Padded tokens of a batch for `encode.batch_tokens: auto`. More of them fall out of a CPU's
caches; on a GPU this is 64 texts of 512 tokens, and `PADDING_TOKENS` and the free memory end most
batches earlier."""

PADDING_TOKENS = {"cpu": 64, "cuda": 2048}
"""What one more batch costs, in tokens that could be computed meanwhile: on a CPU as measured, on a
GPU the ten milliseconds or so in which it waits for the kernels of a deep model."""

_OF_MODEL = {
    "dtype",
    "torch_dtype",
    "revision",
    "trust_remote_code",
    "device",
    "device_map",
    "token",
    "use_auth_token",
}
"""Arguments of a model's constructor that keys of the config decide, or HF_TOKEN in the
environment."""

_OF_ENCODE = {
    "batch_size",
    "convert_to_numpy",
    "convert_to_tensor",
    "device",
    "normalize_embeddings",
    "output_value",
    "pool",
    "precision",
    "prompt",
    "prompt_name",
    "sentences",
    "show_progress_bar",
    "truncate_dim",
}
"""Arguments of sentence-transformers' own encode that keys of the config decide, or that a run
decides."""

_NONE_OF = "should have none of: {}; use the config's key for it, and HF_TOKEN for a token"

# --- sections


class Section(BaseModel):
    """Refuses unknown keys and changes; takes null for an empty section."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _nothing_given(cls, value: Any) -> Any:
        return {} if value is None else value


class ModelConfig(Section):
    """`model`: which model makes the vectors."""

    encoder: Encoder = SENTENCE_TRANSFORMERS
    """sentence-transformers, or package.module:factory of a plug-in encoder."""
    name: Name
    """Hub id or local folder; a plug-in encoder gets it unchanged."""
    revision: Name | None = None
    """Branch, tag or commit on the hub; the first run pins the commit."""
    dtype: Dtype = Dtype.AUTO
    """Type of the weights, not of the vectors; auto = that of the checkpoint."""
    max_length: Positive | None = None
    """Tokens after which a text is cut; null = the model's limit."""
    pooling: Literal["mean", "cls", "lasttoken", "max"] | None = None
    """mean, cls, lasttoken or max: only for a model without modules.json."""
    trust_remote_code: StrictBool | None = None
    """true = run Python code that comes with the model; false = use the class of transformers; null
    = undecided."""
    kwargs: PlainValues = Field(default={})
    """More arguments for the constructor, such as attn_implementation."""
    expect: FilePath | None = None
    """File (.jsonl) of texts and the vectors that the model must give."""

    @property
    def is_plugin(self) -> bool:
        """Say whether the encoder is not sentence-transformers but a plug-in."""
        return self.encoder != SENTENCE_TRANSFORMERS

    @property
    def is_folder(self) -> bool:
        """Say whether the model is a folder on this machine, by an absolute path."""
        is_folder = os.path.isdir(self.name)  # noqa: PTH112 - Path.is_dir raises for long names
        return not self.is_plugin and self.name.startswith("/") and is_folder

    @field_validator("name")
    @classmethod
    def _local_folder(cls, name: str, info: ValidationInfo) -> str:
        if info.data.get("encoder") != SENTENCE_TRANSFORMERS:
            return _no_secret(name)
        folder = _absolute(name, info)
        # Path.exists raises for long names.
        return folder if os.path.exists(folder) else name  # noqa: PTH110

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        if self.is_plugin and self.pooling:
            raise ValueError(
                "pooling is for a model of sentence-transformers; a plug-in encoder does its own"
            )
        if not self.is_plugin and _OF_MODEL.intersection(self.kwargs):
            raise ValueError(f"kwargs {_NONE_OF.format(', '.join(sorted(_OF_MODEL)))}")
        return self


class EncodeConfig(Section):
    """`encode`: how texts become vectors; as `outputs.*.encode` only the keys given there count."""

    batch_size: PositiveOrAuto = "auto"
    """Most texts in a batch; auto = batch_tokens decides (32 for a plug-in encoder)."""
    batch_tokens: PositiveOrAuto | None = "auto"
    """Most padded tokens in a batch; auto = 2,048 on a CPU, on a GPU up to 32,768 within the free
    memory; null = no limit (then batch_size auto is 32)."""
    normalize: StrictBool = False
    """Scale every vector to length 1."""
    prompt: StrictStr | None = None
    """Text to put before every text."""
    prompt_name: Name | None = None
    """Name of one of the model's prompts."""
    task: Literal["query", "document"] | None = None
    """query or document: encode as encode_query or encode_document does."""
    kwargs: Annotated[
        PlainValues,
        _unless(_OF_ENCODE.intersection, _NONE_OF.format(", ".join(sorted(_OF_ENCODE)))),
    ] = Field(default={})
    """More arguments for the model's encode, such as {task: retrieval.passage}."""
    truncate_dim: Positive | None = None
    """Keep this many leading dimensions."""

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.prompt_name is not None and self.prompt is not None:
            raise ValueError("prompt and prompt_name are both given; keep one of them")
        return self


class ChunkConfig(Section):
    """`chunk`: the unit of work that one worker process does."""

    size: ChunkSize = 1000
    """Distinct texts in a chunk, at most 100,000; auto = as many as a worker does in about 40 s."""
    keep: StrictBool = False
    """Keep the chunk files once the final file is verified."""


class WorkersConfig(Section):
    """`workers`: how worker processes are started."""

    start: Start = Start.AUTO
    """fresh = a new interpreter for every chunk; warm = forked from a process that has loaded the
    model; auto = warm if that works. A retry is always fresh."""
    standby: Annotated[int, Field(ge=0, le=8), _NO_BOOL] = 1
    """Workers prepared ahead for each device; each fresh one holds the weights in host memory."""
    per_device: Annotated[int, Field(ge=1, le=16), _NO_BOOL] = 1
    """Workers that compute on one device at the same time."""


class EngineConfig(Section):
    """`engine`: where workers run."""

    kind: EngineKind = EngineKind.LOCAL
    """local = this machine; ray = the nodes of a Ray cluster (extra `ray`)."""
    address: Name = "auto"
    """Address of the Ray cluster; auto = that of this machine."""


class RecoveryConfig(Section):
    """`recovery`: what is tried, and for how long, before rows or the run are given up."""

    attempts: Positive = 3
    """Tries of a chunk for one cause, and failed starts in a row on one device."""
    min_batch_size: Positive = 1
    """Halving after out-of-memory stops at this many texts."""
    startup_timeout: Seconds = 600.0
    """Time from the start of a worker to its first batch."""
    stall_timeout: Seconds = 300.0
    """Time without progress after which a worker is ended."""
    wait_timeout: Seconds = 600.0
    """Time to wait for a busy GPU, a full disk or the hub."""
    grace: Seconds = 25.0
    """Time from SIGTERM to the end of the run; the vectors so far are saved within it."""
    on_bad_row: OnBadRow = OnBadRow.QUARANTINE
    """quarantine = a row that cannot be encoded becomes NaN and is listed; fail = the run ends."""
    max_bad_rows: Annotated[int, Field(ge=0, le=_MOST), _NO_BOOL] = 100
    """More distinct texts in quarantine end the run: then usually the config is wrong."""


class IngestConfig(Section):
    """`ingest`: how sources are read."""

    memory_limit: Memory = ByteSize(1 << 30)
    """Memory for reading the sources."""


class MetricsConfig(Section):
    """`metrics`: figures for a monitoring system."""

    textfile: PromFile | None = None
    """File (.prom) for figures in the text format of Prometheus."""


class OutputChunkConfig(Section):
    """`outputs.*.chunk`: overrides `chunk.size` for one output."""

    size: ChunkSize | None = None
    """Distinct texts in a chunk of this output; null = chunk.size."""


class OutputConfig(Section):
    """`outputs.*`: one final file; row i of it is row i of its source."""

    source: Sources
    """File, glob or list of them: .csv .tsv .jsonl .ndjson .txt, plain or .gz or .zst; .parquet."""
    template: Name | None = None
    """Text with columns in braces, as in "Summary: {title}"; NULL becomes empty text."""
    sql: Name | None = None
    """SQL expression over the columns (DuckDB)."""
    column: Name | None = None
    """Column whose text is encoded; a .txt source has the column text."""
    skip_blank: StrictBool = False
    """Blank lines of a .txt source are not rows."""
    where: Name | None = None
    """SQL condition; other rows are left out."""
    columns: Columns = ()
    """Columns to carry along: in parquet next to the vector, with npy in NAME.rows.parquet."""
    format: FinalFormat = FinalFormat.NPY
    """npy = an array; parquet = a table with the columns row and vector (extra `parquet`)."""
    dtype: FinalDtype = FinalDtype.FLOAT32
    """Type of the numbers in the final file."""
    encode: EncodeConfig = EncodeConfig()
    """Overrides of encode.* for this output."""
    chunk: OutputChunkConfig = OutputChunkConfig()
    """Override of chunk.size for this output."""

    @property
    def template_note(self) -> str:
        """Say what is probably a mistake in the template; empty if nothing is."""
        right = (
            r'write it in double quotes in a config, "{title}\n{body}", '
            r"and in a shell as $'{title}\n{body}'"
        )
        found = re.search(r"\\[nt]", self.template or "")
        return rf"the template has {found[0]} as two characters; {right}" if found else ""

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        given = [name for name in ("column", "template", "sql") if getattr(self, name)]
        if not given and all(
            re.search(r"\.txt(\.gz|\.zst)?$", each, re.IGNORECASE) for each in self.source
        ):
            return self.model_copy(update={"column": "text"})
        if not given:
            raise ValueError(
                "which text is to be encoded? One of column, template and sql is needed"
            )
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; keep one of them")
        return self


class Config(Section):
    """A whole config file; all paths in it are absolute."""

    workdir: FilePath
    """Folder of all state and all final files."""
    model: ModelConfig
    """Which model makes the vectors."""
    encode: EncodeConfig = EncodeConfig()
    """How texts become vectors."""
    chunk: ChunkConfig = ChunkConfig()
    """The unit of work that one worker process does."""
    reuse: StrictBool = True
    """Take the vector of a text that this workdir has encoded before, with the same model and
    settings."""
    reuse_from: Folders = ()
    """Other workdirs whose finished outputs are searched too. They are only read."""
    device: Devices = ("cuda",)
    """cuda = every visible GPU; cuda:N, a list, or cpu. A run never switches to the CPU."""
    workers: WorkersConfig = WorkersConfig()
    """How worker processes are started."""
    engine: EngineConfig = EngineConfig()
    """Where workers run."""
    recovery: RecoveryConfig = RecoveryConfig()
    """What is tried before rows or the run are given up."""
    env: Annotated[dict[EnvName, EnvValue], _OR_NULL] = Field(default={})
    """More environment variables for the workers."""
    ingest: IngestConfig = IngestConfig()
    """How sources are read."""
    metrics: MetricsConfig = MetricsConfig()
    """Figures for a monitoring system."""
    notify: Addresses = ()
    """Addresses that get a notice of the end and of the first bad row. They are never repeated
    anywhere."""
    outputs: Annotated[dict[OutputName, OutputConfig], _OR_NULL, _NOT_EMPTY]
    """The final files, one entry each."""
    combine: Annotated[dict[OutputName, OutputNames], _OR_NULL] = Field(default={})
    """More final files: the vectors of several outputs side by side."""

    @model_validator(mode="after")
    def _possible_combinations(self) -> Self:
        if self.model.expect and self.engine.kind is EngineKind.RAY:
            raise ValueError(
                "model.expect cannot be checked on the nodes of a Ray cluster; leave it out here, "
                "and check it by "
                "`chunkvisor doctor` on one of the nodes, with engine: {kind: local}"
            )
        for name in self.outputs.keys() & self.combine.keys():
            raise ValueError(f"two outputs are named {name}; rename one")
        for name, members in self.combine.items():
            for member in members:
                if member not in self.outputs:
                    hint = did_you_mean(member, self.outputs)
                    raise ValueError(f"combine.{name}: there is no output {member}; {hint}")
            for key in ("dtype", "where"):
                if len({getattr(self.outputs[member], key) for member in members}) > 1:
                    raise ValueError(
                        f"combine.{name}: {' and '.join(members)} differ in {key}, which must be "
                        f"the same"
                    )
        for name in self.outputs if self.model.is_plugin else ():
            encode = self.effective_encode(name)
            given = [key for key in ("prompt_name", "task", "kwargs") if getattr(encode, key)]
            if given or isinstance(encode.batch_tokens, int):
                raise ValueError(
                    f"output {name}: encode.{(*given, 'batch_tokens')[0]} is for a model of "
                    "sentence-transformers; a plug-in encoder takes encode.prompt, "
                    "encode.batch_size and model.kwargs instead"
                )
        return self

    @property
    def device_kind(self) -> str:
        """Return where the job computes: "cpu" or "cuda"."""
        return "cpu" if "cpu" in self.device else "cuda"

    @property
    def secret_env(self) -> dict[str, str]:
        """Return the environment variable that hands the config's secrets to workers.

        The specs of workers are files, and have only digests of the secrets.
        """
        secrets = dict[str, Any]()
        digested(self.model_dump(mode="json"), secrets)
        return {SECRETS: json.dumps(secrets)} if secrets else {}

    def effective_encode(self, output: str) -> EncodeConfig:
        """Apply the output's overrides to `encode`.

        A prompt of the output replaces a general prompt_name, and a prompt_name a general prompt.
        """
        override = self.outputs[output].encode
        update = {name: getattr(override, name) for name in override.model_fields_set}
        for one, other in (("prompt_name", "prompt"), ("prompt", "prompt_name")):
            if update.get(one) is not None:
                update[other] = None
        return self.encode.model_copy(update=update)

    def effective_chunk_size(self, output: str) -> int | Literal["auto"]:
        """Return the number of distinct texts in a chunk of that output."""
        return self.outputs[output].chunk.size or self.chunk.size


def encode_spec(encode: EncodeConfig) -> EncodeSpec:
    """Return what workers get of the section: what shapes the vectors, without batches."""
    values = encode.model_dump(include={*EncodeSpec.__dataclass_fields__})
    return EncodeSpec(**values | {"kwargs": digested(encode.kwargs)})


def resolve_limits(encode: EncodeConfig, device_kind: str, *, plugin: bool) -> Limits:
    """Return the limits of a batch, with numbers for `auto` on this kind of device.

    A plug-in has no limit of tokens, since they cannot be counted.
    """
    rows = None if encode.batch_size == "auto" else int(encode.batch_size)
    if plugin or encode.batch_tokens is None:
        return Limits(rows or AUTO_ROWS)
    measured = encode.batch_tokens == "auto" and device_kind == "cuda"
    tokens = AUTO_TOKENS[device_kind] if encode.batch_tokens == "auto" else int(encode.batch_tokens)
    # No text has less than one token, so as many rows as tokens are no limit.
    return Limits(rows or tokens, tokens, padding=PADDING_TOKENS[device_kind], measured=measured)
