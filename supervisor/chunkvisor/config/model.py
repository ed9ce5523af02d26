"""The configuration of a run as validated, frozen models; `load` reads the YAML and puts errors into words.

The docstring of a key is its description in the JSON Schema. A wrong value raises pydantic.ValidationError, with the
errors of `sentences` beside pydantic's own for missing and unknown keys.
"""

import os
import re
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from chunkvisor.config import paths, values
from chunkvisor.config.paths import joined
from chunkvisor.config.reserved import RESERVED_NAMES
from chunkvisor.config.sentences import expected, of_two, refused
from chunkvisor.config.values import SENTENCE_TRANSFORMERS, empty

_OWNED_KWARGS = {
    "dtype": "use the key model.dtype",
    "torch_dtype": "use the key model.dtype",
    "revision": "use the key model.revision",
    "trust_remote_code": "use the key model.trust_remote_code",
    "device": "use the key device",
    "device_map": "use the key device",
    "token": "a token does not belong in a config file; set HF_TOKEN in the environment of chunkvisor",
    "use_auth_token": "a token does not belong in a config file; set HF_TOKEN in the environment of chunkvisor",
}


_TEXT_FILE = re.compile(r"\.txt(\.gz|\.zst)?$", re.IGNORECASE)


class Dtype(StrEnum):
    """Of the model's weights on the device; AUTO is the checkpoint's own."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class Backend(StrEnum):
    """What computes with the model."""

    TORCH = "torch"
    OPENVINO = "openvino"
    """On the CPU, with the model converted once (extra `openvino`)."""


class EngineKind(StrEnum):
    """Where workers run."""

    LOCAL = "local"
    """On this machine."""
    RAY = "ray"
    """On the nodes of a Ray cluster."""


class Start(StrEnum):
    """How a worker starts."""

    FRESH = "fresh"
    """A new interpreter."""
    WARM = "warm"
    """Forked from a template process that has loaded the model; a retry is fresh all the same."""
    AUTO = "auto"
    """WARM where it works, FRESH where it does not."""


class Strictness(StrEnum):
    """What may differ between the chunks of one output."""

    STANDARD = "standard"
    """Versions of the libraries may; the manifest says which rows have which."""
    STRICT = "strict"
    """Not even they."""


class OnBadRow(StrEnum):
    """What to do with a row that the model cannot encode."""

    QUARANTINE = "quarantine"
    FAIL = "fail"


class Long(StrEnum):
    """What becomes of a text of more tokens than the model reads."""

    CUT = "cut"
    WINDOWS = "windows"


class FinalFormat(StrEnum):
    """How the rows of a final are written; `assemble.formats` has one module for each."""

    NPY = "npy"
    PARQUET = "parquet"


class FinalDtype(StrEnum):
    """Of the numbers in a final."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"
    """Each dimension's range over the whole output in 256 steps."""
    UBINARY = "ubinary"
    """One bit a dimension, eight in a byte: whether it is greater than 0."""


def _distinct_names(outputs: dict[str, "OutputConfig"]) -> dict[str, "OutputConfig"]:
    seen: dict[str, str] = {}
    for name in outputs:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise refused(f"{other} and {name} would be the same file where letter case does not count; rename one")
    if not outputs:
        raise refused("at least one output is needed")
    owners = dict.fromkeys(RESERVED_NAMES, "chunkvisor itself")
    for name, output in outputs.items():
        for file in _files_of(name, output):
            if (owner := owners.setdefault(file.casefold(), f"output {name}")) != f"output {name}":
                raise refused(f"{name} would need the name {file} in the workdir, which {owner} has; rename it")
    return outputs


def _files_of(name: str, output: "OutputConfig") -> list[str]:
    """What the output has in the workdir itself, see `store.layout`."""
    files = [f"{name}.json", f"{name}.quarantined.jsonl", f"{name}.{output.format}" if output.shards is None else name]
    files += [f"{name}.ranges.npy"] * (output.dtype is FinalDtype.INT8)
    numbers_rows = output.where is not None or output.encode.long is Long.WINDOWS
    carries = output.format is FinalFormat.NPY and (output.columns or numbers_rows)
    return files + [f"{name}.rows.parquet"] * bool(carries)


class Section(BaseModel):
    """What all sections have in common: unknown keys are refused, nothing changes after validation."""

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
        return empty(value)


class ModelConfig(Section):
    """`model`: which model makes the vectors."""

    encoder: values.Encoder = SENTENCE_TRANSFORMERS
    """sentence-transformers, or "package.module:factory" of a plug-in encoder."""
    name: Annotated[values.Name, expected("the name of a model or of a local folder", text=True)]
    """Hub id or local folder; a plug-in encoder gets it as it is."""
    revision: Annotated[values.Name | None, expected("a branch, tag or commit hash, or null", text=True)] = None
    """Branch, tag or commit of the hub; resolved to a commit hash once. null = the default branch."""
    dtype: Annotated[Dtype, expected("auto, float32, float16 or bfloat16")] = Dtype.AUTO
    """Type of the weights on the device, not of the vectors; auto = the checkpoint's own, with openvino float32."""
    backend: Annotated[Backend, expected('"torch" or "openvino"')] = Backend.TORCH
    """What computes: torch; or openvino, faster on a CPU, with the model converted once (extra `openvino`)."""
    max_length: values.PositiveOrNull = None
    """Tokens after which a text is cut; null = the model's own limit."""
    trust_remote_code: values.Flag = False
    """Run Python code that comes with the model; only for models you trust."""
    kwargs: values.PlainValues = {}
    """More arguments for the model's constructor, such as attn_implementation."""

    @property
    def is_plugin(self) -> bool:
        """The encoder is the person's own code."""
        return self.encoder != SENTENCE_TRANSFORMERS

    @property
    def is_folder(self) -> bool:
        """It is a folder here, whose path is absolute by now: a relative name is a hub id, wherever the process is."""
        return not self.is_plugin and self.name.startswith("/") and os.path.isdir(self.name)  # noqa: PTH112 - as below

    @field_validator("kwargs")
    @classmethod
    def _no_owned_kwargs(cls, kwargs: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if info.data.get("encoder") == SENTENCE_TRANSFORMERS and (owned := sorted(_OWNED_KWARGS.keys() & kwargs)):
            raise refused("; ".join(f"{name} is not for here: {_OWNED_KWARGS[name]}" for name in owned))
        return kwargs

    @field_validator("name")
    @classmethod
    def _local_folder(cls, name: str, info: ValidationInfo) -> str:
        if info.data.get("encoder") != SENTENCE_TRANSFORMERS:
            return name
        try:
            folder = joined(name, info)
        except ValueError:
            raise refused("a name cannot hold this character") from None
        return folder if os.path.exists(folder) else name  # noqa: PTH110 - Path.exists raises for long names


class EncodeConfig(Section):
    """`encode`: how texts become vectors; as `outputs.*.encode` only the keys given there count."""

    batch_size: values.PositiveOrAuto = "auto"
    """Texts in a batch, at most; auto = batch_tokens alone decides (32 for a plug-in encoder)."""
    batch_tokens: values.PositiveAutoOrNull = "auto"
    """Padded tokens in a batch, at most; auto = 2,048 on a CPU; on a GPU 32,768, or what fits the memory that is
    measured free. null = texts alone decide (then batch_size auto is 32)."""
    normalize: values.Flag = False
    """Scale every vector to length 1."""
    prompt: Annotated[StrictStr | None, expected("text or null", text=True)] = None
    """Text put before every text; not together with prompt_name."""
    prompt_name: Annotated[
        values.Name | None, expected("the name of one of the model's prompts, or null", text=True)
    ] = None
    """One of the model's own prompts, by name; not together with prompt."""
    truncate_dim: values.PositiveOrNull = None
    """Keep only so many leading dimensions; null = all."""
    long: Annotated[Long, expected('"cut" or "windows"')] = Long.CUT
    """A text of more tokens than the model reads: cut = its end is dropped; windows = it becomes several rows, one
    vector each, and NAME.rows.parquet says which row and which characters a vector is of."""
    overlap: values.NotNegativeOrAuto = "auto"
    """Tokens that a window has in common with the one before it; auto = an eighth of a window."""

    @field_validator("prompt_name")
    @classmethod
    def _one_prompt(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and info.data.get("prompt") is not None:
            raise refused("prompt and prompt_name are both given; keep one of them", of_section=True)
        return name


class ChunkConfig(Section):
    """`chunk`: the unit of work that one worker process does."""

    size: values.PositiveOrAuto = 1000
    """Distinct texts in a chunk; a fault costs at most this much work. auto = as many as a worker does in about 40
    s."""
    keep: values.Flag = False
    """Keep the chunk files once the final file is verified."""


class OutputChunkConfig(Section):
    """`outputs.*.chunk`: overrides `chunk.size` for one output."""

    size: values.PositiveAutoOrNull = None
    """Distinct texts in a chunk of this output; null = chunk.size."""


class WorkersConfig(Section):
    """`workers`: how worker processes are started."""

    start: Annotated[Start, expected('"fresh", "warm" or "auto"')] = Field(
        default=Start.AUTO,
        description="fresh = a new interpreter for every chunk; warm = forked from a process that has loaded the "
        "model; auto = warm where that works. A retry is always fresh.",
    )
    standby: values.UpToEight = 1
    """Workers prepared ahead, for each device; a fresh one holds a copy of the weights in host memory, warm ones share
    it."""
    per_device: values.OneToSixteen = 1
    """Workers that compute on one device at the same time; workers on the CPU share its cores."""


class EngineConfig(Section):
    """`engine`: where workers run."""

    kind: Annotated[EngineKind, expected('"local" or "ray"')] = EngineKind.LOCAL
    """local = on this machine; ray = on the nodes of a Ray cluster (extra `ray`)."""
    address: Annotated[values.Name, expected("the address of a Ray cluster, as host:port, or auto", text=True)] = "auto"
    """Address of the Ray cluster; auto = the cluster that this machine belongs to."""
    shared: values.Flag = False
    """true = the nodes see the workdir under the same path: workers write there, and nothing is sent."""


class RecoveryConfig(Section):
    """`recovery`: what is tried, and for how long, before rows or the run are given up."""

    attempts: values.Positive = 3
    """Tries of a chunk for one cause, and failed starts in a row on one device; halving after out of memory is counted
    apart."""
    min_batch_size: values.Positive = 1
    """Halving after out of memory stops at so many texts."""
    startup_timeout: values.Seconds = 600.0
    """Seconds from the start of a worker to its first batch."""
    stall_timeout: values.Seconds = 300.0
    """Seconds without progress after which a worker is ended."""
    wait_timeout: values.Seconds = 600.0
    """Seconds to wait for a busy GPU, a neighbour's memory, a full disk or the hub."""
    grace: values.Seconds = 25.0
    """Seconds from SIGTERM to the end of the run: the chunks under way are finished by then, or saved as they are. Keep
    it shorter than what follows a SIGTERM where the run is started."""
    on_bad_row: Annotated[OnBadRow, expected('"quarantine" or "fail"')] = OnBadRow.QUARANTINE
    """quarantine = a row that cannot be encoded becomes NaN and is listed in the manifest; fail = the run ends."""
    max_bad_rows: values.NotNegative = 100
    """With more quarantined rows than this the run ends: then the config is wrong, not the data."""


class IngestConfig(Section):
    """`ingest`: how sources are read."""

    memory_limit: values.Memory = ByteSize(1 << 30)
    """Memory for reading the sources."""


class MetricsConfig(Section):
    """`metrics`: figures for a monitoring system."""

    textfile: paths.PromFile | None = None
    """File, `*.prom`, that is kept up to date in Prometheus' text format; its folder must exist. null = none."""


class DatabaseSource(Section):
    """`outputs.*.source` of which a query says what the rows are."""

    database: paths.FilePath
    """DuckDB or SQLite file; it is only read."""
    query: Annotated[values.Name, expected("a query: one SELECT that ends with an ORDER BY", text=True)]
    """One SELECT that ends with an ORDER BY, in the dialect of the database."""


class OutputConfig(Section):
    """`outputs.*`: one final file; row i of it is row i of its source."""

    source: Annotated[paths.Sources | DatabaseSource, of_two(DatabaseSource, paths.Sources)]
    """File, glob or list of them, here or at s3://, hf:// and other addresses: .csv .tsv .jsonl .ndjson .txt, plain or
    .gz or .zst; .parquet .arrow .feather. Or a database with a query."""
    template: Annotated[values.Name | None, expected("a template: text with columns in braces", text=True)] = None
    """Text with columns in braces, as in "Summary: {title}"; NULL is filled in as empty text."""
    sql: Annotated[values.Name | None, expected("an SQL expression over the columns", text=True)] = None
    """SQL expression over the columns, in DuckDB's dialect."""
    # After the other two, so that its validator sees them.
    column: Annotated[values.Name | None, expected("the name of a column", text=True)] = Field(
        default=None, validate_default=True
    )
    """Column whose text is encoded; a .txt source has one, called text."""
    skip_blank: values.Flag = False
    """Blank lines of a .txt source are no rows; row numbers then count the others."""
    where: Annotated[values.Name | None, expected("an SQL condition over the columns, or null", text=True)] = None
    """SQL condition over the columns; rows for which it does not hold are left out, the others are numbered anew."""
    columns: values.Columns = ()
    """Columns that are carried along: in parquet beside the vector, with npy in NAME.rows.parquet."""
    shards: values.Shards = None
    """Number of files over which the rows are spread, in a folder of the output's name; null = one file."""
    format: Annotated[FinalFormat, expected('"npy" or "parquet"')] = FinalFormat.NPY
    """Of the final file: npy = an array; parquet = a table with the columns row and vector (extra `parquet`)."""
    dtype: Annotated[FinalDtype, expected("float32, float16, int8 or ubinary")] = FinalDtype.FLOAT32
    """Of the numbers in the final file; int8 = 256 steps over the range of each dimension, ubinary = one bit for
    each."""
    encode: EncodeConfig = EncodeConfig()
    """Overrides of encode.* for this output."""
    chunk: OutputChunkConfig = OutputChunkConfig()
    """Override of chunk.size for this output."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Files and patterns, in the order of their rows."""
        return (str(self.source.database),) if isinstance(self.source, DatabaseSource) else self.source

    @property
    def query(self) -> str | None:
        """What to read of the one source, which is a database then."""
        return self.source.query if isinstance(self.source, DatabaseSource) else None

    @field_validator("column")
    @classmethod
    def _one_text(cls, column: str | None, info: ValidationInfo) -> str | None:
        if not {"source", "template", "sql"} <= info.data.keys():
            return column  # one of them is wrong itself, and says so
        others = {name: info.data[name] for name in ("template", "sql")}
        given = [name for name, value in {"column": column, **others}.items() if value is not None]
        source = info.data["source"]
        if not given and not isinstance(source, DatabaseSource) and all(map(_TEXT_FILE.search, source)):
            return "text"
        if not given:
            raise refused("which text is to be encoded? One of column, template and sql is needed", of_section=True)
        if len(given) > 1:
            raise refused(f"{' and '.join(given)} are given; keep one of them", of_section=True)
        return column


class Config(Section):
    """A whole config file; all paths in it are absolute."""

    workdir: paths.Folder
    """Folder of all state and all final files."""
    model: ModelConfig
    """Which model makes the vectors."""
    encode: EncodeConfig = EncodeConfig()
    """How texts become vectors."""
    chunk: ChunkConfig = ChunkConfig()
    """The unit of work that one worker process does."""
    identity: Annotated[Strictness, expected('"standard" or "strict"')] = Strictness.STANDARD
    """What may differ between the chunks of an output. standard = the versions of torch, transformers and
    sentence-transformers: a resume under others says so, and the manifest has each with its share of rows. strict =
    nothing: the run is refused with 78."""
    reuse: values.Flag = True
    """A text of which this workdir has a vector, made by the same model in the same way, is not encoded again."""
    reuse_from: paths.Folders = ()
    """Other workdirs whose finished outputs are looked up as well; they are only read, and what is taken is copied."""
    device: values.Devices = ("cuda",)
    """cuda = every visible GPU; a run never falls back to the CPU by itself."""
    workers: WorkersConfig = WorkersConfig()
    """How worker processes are started."""
    engine: EngineConfig = EngineConfig()
    """Where workers run."""
    recovery: RecoveryConfig = RecoveryConfig()
    """What is tried before rows or the run are given up."""
    env: Annotated[dict[values.EnvName, values.EnvValue], BeforeValidator(empty)] = {}
    """More environment variables for the workers; not those that chunkvisor sets itself, such as
    CUDA_VISIBLE_DEVICES."""
    ingest: IngestConfig = IngestConfig()
    """How sources are read."""
    metrics: MetricsConfig = MetricsConfig()
    """Figures for a monitoring system."""
    notify: values.Addresses = ()
    """Addresses that are told of the end, of stalls and of the first bad row. They may hold passwords, and are never
    repeated anywhere."""
    upload: paths.FolderAddress | None = None
    """Address of a folder, such as s3://bucket/embeddings, to which the finals are copied once they are complete."""
    outputs: Annotated[dict[values.OutputName, OutputConfig], BeforeValidator(empty), AfterValidator(_distinct_names)]
    """The final files, one entry each, at least one."""
    combine: Annotated[dict[values.OutputName, values.OutputNames], BeforeValidator(empty)] = {}
    """More final files: the vectors of several outputs side by side, for the same rows."""

    @model_validator(mode="after")
    def _possible_combinations(self) -> Self:
        taken = {file.casefold(): name for name, output in self.outputs.items() for file in _files_of(name, output)}
        taken |= dict.fromkeys(RESERVED_NAMES, "chunkvisor itself")
        for name, members in self.combine.items():
            for file in (f"{name}.json", f"{name}.quarantined.jsonl", f"{name}.npy"):
                if (owner := taken.setdefault(file.casefold(), f"combine.{name}")) != f"combine.{name}":
                    raise refused(f"combine.{name} would need the name {file}, which {owner} has; rename it")
            for member in members:
                if member not in self.outputs:
                    near = get_close_matches(member, self.outputs, 1)
                    hint = f"; the nearest is {near[0]}" if near else ""
                    raise refused(f"combine.{name}: there is no output {member}{hint}")
                if (dtype := self.outputs[member].dtype) is not FinalDtype.FLOAT32:
                    raise refused(f"combine.{name}: {member} is of {dtype}; only float32 can be put side by side")
            if cut := [member for member in members if self.effective_encode(member).long is Long.WINDOWS]:
                raise refused(f"combine.{name}: rows of {cut[0]} are windows of its own texts (encode.long)")
            conditions = {self.outputs[member].where for member in members}
            if len(conditions) > 1:
                raise refused(f"combine.{name}: {' and '.join(members)} differ in `where`: their rows are others")
        return self

    @model_validator(mode="after")
    def _possible_for_openvino(self) -> Self:
        model, refusals = self.model, dict[str, bool]()
        if model.backend is Backend.OPENVINO:
            refusals = {
                f"a plug-in encoder ({model.encoder}) computes by itself; leave model.backend out": model.is_plugin,
                "it computes on the CPU alone; write device: cpu": set(self.device) != {"cpu"},
                "it computes in float32 or bfloat16; model.dtype is float16": model.dtype is Dtype.FLOAT16,
                "model.kwargs.backend is given as well; keep one of them": "backend" in model.kwargs,
                "workers on a Ray cluster have no place for the converted model; write engine: {kind: local}": (
                    self.engine.kind is EngineKind.RAY
                ),
            }
        for why in (why for why, holds in refusals.items() if holds):
            raise refused(f"model.backend is openvino: {why}")
        return self

    @model_validator(mode="after")
    def _possible_for_a_plugin(self) -> Self:
        for name in self.outputs if self.model.is_plugin else ():
            encode = self.effective_encode(name)
            if encode.long is Long.WINDOWS:
                raise refused(
                    f"output {name}: encode.long: windows counts tokens, which nobody can do for a plug-in encoder; "
                    "cut the texts in the source"
                )
            if encode.prompt_name is not None:
                raise refused(
                    f"output {name}: encode.prompt_name names a prompt of the model; a plug-in has none; write the "
                    "prompt itself: encode.prompt"
                )
            if isinstance(encode.batch_tokens, int):
                raise refused(
                    f"output {name}: encode.batch_tokens cannot hold for a plug-in encoder, whose tokens nobody can "
                    "count; use encode.batch_size"
                )
        return self

    def effective_encode(self, output: str) -> EncodeConfig:
        """`encode` with the overrides of that output; an own prompt replaces a general prompt_name, and vice versa."""
        override = self.outputs[output].encode
        update = {name: getattr(override, name) for name in override.model_fields_set}
        if update.get("prompt") is not None:
            update["prompt_name"] = None
        elif update.get("prompt_name") is not None:
            update["prompt"] = None
        return self.encode.model_copy(update=update)

    def effective_chunk_size(self, output: str) -> int | Literal["auto"]:
        """Distinct texts in a chunk of that output."""
        return self.outputs[output].chunk.size or self.chunk.size
