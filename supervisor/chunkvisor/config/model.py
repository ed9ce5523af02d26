"""The configuration of a run as a validated, frozen model, and what workers get of it.

The docstring of a key is its description in docs/reference/config.md.
"""

import os
import re
from collections import Counter
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

from chunkvisor.config import values
from chunkvisor.config.choices import Dtype, EngineKind, FinalDtype, FinalFormat, OnBadRow, Start
from chunkvisor.config.values import SENTENCE_TRANSFORMERS, empty, refused
from chunkvisor.units import did_you_mean
from chunkvisor_worker.contract.messages import EncodeSpec, Limits, ModelSpec

AUTO_ROWS = 32
"""Rows of a batch without a token budget, as in sentence-transformers."""

AUTO_TOKENS = {"cpu": 2048, "cuda": 32768}
"""Padded tokens of a batch for `encode.batch_tokens: auto`. On a CPU more of them fall out of the cores' caches; on a
GPU this is 64 texts of 512 tokens, and `PADDING_TOKENS` and the free memory end most batches before."""

PADDING_TOKENS = {"cpu": 64, "cuda": 2048}
"""What one more batch costs, in tokens that could be computed meanwhile: on a CPU as measured
(docs/explanation/performance.md), on a GPU the ten milliseconds or so in which it waits for the kernels of a deep
model to be launched."""

_OF_MODEL = {"dtype", "torch_dtype", "revision", "trust_remote_code", "device", "device_map", "token", "use_auth_token"}
"""Arguments of a model's constructor that keys of the config decide, or HF_TOKEN in the environment."""

_OF_ENCODE = {
    *("batch_size", "convert_to_numpy", "convert_to_tensor", "device", "normalize_embeddings", "output_value", "pool"),
    *("precision", "prompt", "prompt_name", "sentences", "show_progress_bar", "truncate_dim"),
}
"""Arguments of sentence-transformers' own encode that keys of the config decide, or that a run decides."""


def _refuse_owned(kwargs: dict[str, Any], owned: set[str]) -> dict[str, Any]:
    if found := sorted(owned & kwargs.keys()):
        raise refused(f"{', '.join(found)}: not for here; use the key of the config, and HF_TOKEN for a token")
    return kwargs


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
        return empty(value)


class ModelConfig(Section):
    """`model`: which model makes the vectors."""

    encoder: values.Encoder = SENTENCE_TRANSFORMERS
    """sentence-transformers, or "package.module:factory" of a plug-in encoder."""
    name: values.Name
    """Hub id or local folder; a plug-in encoder gets it as it is."""
    revision: values.Name | None = None
    """Branch, tag or commit of the hub; resolved to a commit hash once. null = the default branch."""
    dtype: Dtype = Dtype.AUTO
    """Type of the weights on the device, not of the vectors; auto = the checkpoint's own."""
    max_length: values.Positive | None = None
    """Tokens after which a text is cut; null = the model's own limit."""
    pooling: Literal["mean", "cls", "lasttoken", "max"] | None = None
    """How the vectors of a text's tokens become one; only for a model without modules.json, whose files do not say."""
    trust_remote_code: values.Flag | None = None
    """Run Python code that comes with the model: true, only for models you trust. false = leave that code out on
    purpose, and take the class of transformers; null = undecided."""
    kwargs: values.PlainValues = Field(default={})
    """More arguments for the model's constructor, such as attn_implementation."""
    expect: values.FilePath | None = None
    """File (.jsonl) of texts and the vectors that the model must give for them; null = none."""

    @property
    def is_plugin(self) -> bool:
        """Say whether the encoder is the person's own code."""
        return self.encoder != SENTENCE_TRANSFORMERS

    @property
    def is_folder(self) -> bool:
        """Say whether it is a folder on this machine; a relative name is a hub id."""
        return not self.is_plugin and self.name.startswith("/") and os.path.isdir(self.name)  # noqa: PTH112 - as below

    @field_validator("kwargs")
    @classmethod
    def _no_owned_kwargs(cls, kwargs: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return _refuse_owned(kwargs, _OF_MODEL if info.data.get("encoder") == SENTENCE_TRANSFORMERS else set())

    @field_validator("name")
    @classmethod
    def _local_folder(cls, name: str, info: ValidationInfo) -> str:
        if info.data.get("encoder") != SENTENCE_TRANSFORMERS:
            return name
        folder = values.joined(name, info)
        return folder if os.path.exists(folder) else name  # noqa: PTH110 - Path.exists raises for long names


class EncodeConfig(Section):
    """`encode`: how texts become vectors; as `outputs.*.encode` only the keys given there count."""

    batch_size: values.PositiveOrAuto = "auto"
    """Texts in a batch, at most; auto = batch_tokens alone decides (32 for a plug-in encoder)."""
    batch_tokens: values.PositiveOrAuto | None = "auto"
    """Padded tokens in a batch, at most; auto = 2,048 on a CPU; on a GPU 32,768, or what fits the memory that is
    measured free. null = texts alone decide (then batch_size auto is 32)."""
    normalize: values.Flag = False
    """Scale every vector to length 1."""
    prompt: StrictStr | None = None
    """Text put before every text; not together with prompt_name."""
    prompt_name: values.Name | None = None
    """One of the model's own prompts, by name; not together with prompt."""
    task: Literal["query", "document"] | None = None
    """query or document: encode as encode_query or encode_document of sentence-transformers do, with the prompt and
    the part of the model that are for it."""
    kwargs: values.PlainValues = Field(default={})
    """More arguments for the model's own encode, such as {task: retrieval.passage}."""
    truncate_dim: values.Positive | None = None
    """Keep only this many leading dimensions; null = all."""

    @field_validator("kwargs")
    @classmethod
    def _no_owned_kwargs(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        return _refuse_owned(kwargs, _OF_ENCODE)

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


class WorkersConfig(Section):
    """`workers`: how worker processes are started."""

    start: Start = Start.AUTO
    """fresh = a new interpreter for every chunk; warm = forked from a process that has loaded the model; auto = warm
    where that works. A retry is always fresh."""
    standby: values.UpToEight = 1
    """Workers prepared ahead, for each device; a fresh one holds a copy of the weights in host memory, warm ones share
    it."""
    per_device: values.OneToSixteen = 1
    """Workers that compute on one device at the same time; workers on the CPU share its cores."""


class EngineConfig(Section):
    """`engine`: where workers run."""

    kind: EngineKind = EngineKind.LOCAL
    """local = on this machine; ray = on the nodes of a Ray cluster (extra `ray`)."""
    address: values.Name = "auto"
    """Address of the Ray cluster; auto = the cluster that this machine belongs to."""


class RecoveryConfig(Section):
    """`recovery`: what is tried, and for how long, before rows or the run are given up."""

    attempts: values.Positive = 3
    """Tries of a chunk for one cause, and failed starts in a row on one device; halving after out of memory does not
    count."""
    min_batch_size: values.Positive = 1
    """Halving after out of memory stops at this many texts."""
    startup_timeout: values.Seconds = 600.0
    """Seconds from the start of a worker to its first batch."""
    stall_timeout: values.Seconds = 300.0
    """Seconds without progress after which a worker is ended."""
    wait_timeout: values.Seconds = 600.0
    """Seconds to wait for a busy GPU, a neighbour's memory, a full disk or the hub."""
    grace: values.Seconds = 25.0
    """Seconds from SIGTERM to the end of the run: what the chunks under way have encoded is saved by then. Keep it
    shorter than the time after which whatever sent the SIGTERM kills the run."""
    on_bad_row: OnBadRow = OnBadRow.QUARANTINE
    """quarantine = a row that cannot be encoded becomes NaN and is listed in the manifest; fail = the run ends."""
    max_bad_rows: values.NotNegative = 100
    """With more quarantined rows than this the run ends: usually the config is wrong, not the data."""


class IngestConfig(Section):
    """`ingest`: how sources are read."""

    memory_limit: values.Memory = ByteSize(1 << 30)
    """Memory for reading the sources."""


class MetricsConfig(Section):
    """`metrics`: figures for a monitoring system."""

    textfile: values.PromFile | None = None
    """File, `*.prom`, that is kept up to date in Prometheus' text format; its folder must exist. null = none."""


class OutputChunkConfig(Section):
    """`outputs.*.chunk`: overrides `chunk.size` for one output."""

    size: values.PositiveOrAuto | None = None
    """Distinct texts in a chunk of this output; null = chunk.size."""


class OutputConfig(Section):
    """`outputs.*`: one final file; row i of it is row i of its source."""

    source: values.Sources
    """File, glob or list of them, here or at s3://, hf:// and other addresses: .csv .tsv .jsonl .ndjson .txt, plain or
    .gz or .zst; .parquet."""
    template: values.Name | None = None
    """Text with columns in braces, as in "Summary: {title}"; NULL is filled in as empty text."""
    sql: values.Name | None = None
    """SQL expression over the columns, in DuckDB's dialect."""
    # After the other two, so that its validator sees them.
    column: values.Name | None = Field(default=None, validate_default=True)
    """Column whose text is encoded; a .txt source has one, called text."""
    skip_blank: values.Flag = False
    """true = blank lines of a .txt source do not count as rows."""
    where: values.Name | None = None
    """SQL condition over the columns; only rows for which it holds are in the output, numbered from 0."""
    columns: values.Columns = ()
    """Columns that are carried along: in parquet next to the vector, with npy in NAME.rows.parquet."""
    shards: values.Shards | None = None
    """Number of files over which the rows are spread, in a folder of the output's name; null = one file."""
    format: FinalFormat = FinalFormat.NPY
    """Of the final file: npy = an array; parquet = a table with the columns row and vector (extra `parquet`)."""
    dtype: FinalDtype = FinalDtype.FLOAT32
    """Of the numbers in the final file; int8 = 256 steps over the range of each dimension, ubinary = one bit for
    each."""
    encode: EncodeConfig = EncodeConfig()
    """Overrides of encode.* for this output."""
    chunk: OutputChunkConfig = OutputChunkConfig()
    """Override of chunk.size for this output."""

    @property
    def template_note(self) -> str:
        """Say what is probably not meant in the template; empty if all seems to be."""
        found = next((each for each in (r"\n", r"\t") if each in (self.template or "")), "")
        if not found:
            return ""
        return (
            f"the template has a backslash and the letter {found[1]}, which stand in every text as they are. If a line "
            f'break or a tab is meant: in YAML, double quotes: "{{title}}\\n{{body}}"; in a shell: '
            "$'{title}\\n{body}'"
        )

    @field_validator("column")
    @classmethod
    def _one_text(cls, column: str | None, info: ValidationInfo) -> str | None:
        if not {"source", "template", "sql"} <= info.data.keys():
            return column  # one of them is wrong itself, and says so
        others = {name: info.data[name] for name in ("template", "sql")}
        given = [name for name, value in {"column": column, **others}.items() if value is not None]
        if not given and all(re.search(r"\.txt(\.gz|\.zst)?$", each, re.IGNORECASE) for each in info.data["source"]):
            return "text"
        if not given:
            raise refused("which text is to be encoded? One of column, template and sql is needed", of_section=True)
        if len(given) > 1:
            raise refused(f"{' and '.join(given)} are given; keep one of them", of_section=True)
        return column


def _some(outputs: dict[str, OutputConfig]) -> dict[str, OutputConfig]:
    if not outputs:
        raise refused("at least one output is needed")
    return outputs


class Config(Section):
    """A whole config file; all paths in it are absolute."""

    workdir: values.Folder
    """Folder of all state and all final files."""
    model: ModelConfig
    """Which model makes the vectors."""
    encode: EncodeConfig = EncodeConfig()
    """How texts become vectors."""
    chunk: ChunkConfig = ChunkConfig()
    """The unit of work that one worker process does."""
    reuse: values.Flag = True
    """A text of which this workdir has a vector, made by the same model in the same way, is not encoded again."""
    reuse_from: values.Folders = ()
    """Other workdirs whose finished outputs are looked up as well; they are only read, and what is taken is copied."""
    device: values.Devices = ("cuda",)
    """cuda = every visible GPU; a run never falls back to the CPU by itself."""
    workers: WorkersConfig = WorkersConfig()
    """How worker processes are started."""
    engine: EngineConfig = EngineConfig()
    """Where workers run."""
    recovery: RecoveryConfig = RecoveryConfig()
    """What is tried before rows or the run are given up."""
    env: Annotated[dict[values.EnvName, values.EnvValue], values.OR_NULL] = Field(default={})
    """More environment variables for the workers; not those that chunkvisor sets itself, such as
    CUDA_VISIBLE_DEVICES."""
    ingest: IngestConfig = IngestConfig()
    """How sources are read."""
    metrics: MetricsConfig = MetricsConfig()
    """Figures for a monitoring system."""
    notify: values.Addresses = ()
    """Addresses that are told of the end and of the first bad row. They may hold passwords, and are never
    repeated anywhere."""
    outputs: Annotated[dict[values.OutputName, OutputConfig], BeforeValidator(empty), AfterValidator(_some)]
    """The final files, one entry each, at least one."""
    combine: Annotated[dict[values.OutputName, values.OutputNames], BeforeValidator(empty)] = Field(default={})
    """More final files: the vectors of several outputs side by side, for the same rows."""

    @model_validator(mode="after")
    def _possible_combinations(self) -> Self:
        if self.model.expect is not None and self.engine.kind is EngineKind.RAY:
            raise refused(
                "model.expect cannot be checked on the nodes of a Ray cluster; leave it out here, and check it by "
                "`chunkvisor doctor` on one of the nodes, with engine: {kind: local}"
            )
        for name, number in Counter(map(str.casefold, (*self.outputs, *self.combine))).items():
            if number > 1:
                raise refused(f"two outputs are named {name}, if letter case does not count; rename one")
        for name, members in self.combine.items():
            for member in members:
                if member not in self.outputs:
                    raise refused(f"combine.{name}: there is no output {member}; {did_you_mean(member, self.outputs)}")
            for key in ("dtype", "where"):
                if len({getattr(self.outputs[member], key) for member in members}) > 1:
                    raise refused(f"combine.{name}: {' and '.join(members)} differ in {key}, which must be the same")
        return self

    @model_validator(mode="after")
    def _possible_for_a_plugin(self) -> Self:
        if self.model.is_plugin and self.model.pooling is not None:
            raise refused("model.pooling is for a model of sentence-transformers; a plug-in encoder pools by itself")
        for name in self.outputs if self.model.is_plugin else ():
            encode = self.effective_encode(name)
            for key in ("prompt_name", "task", "kwargs"):
                if getattr(encode, key):
                    raise refused(
                        f"output {name}: encode.{key} is for a model of sentence-transformers; a plug-in encoder gets "
                        "texts alone: write a prompt as encode.prompt, and give it what else it needs as model.kwargs"
                    )
            if isinstance(encode.batch_tokens, int):
                raise refused(
                    f"output {name}: encode.batch_tokens cannot hold for a plug-in encoder, whose tokens cannot be "
                    "counted; use encode.batch_size"
                )
        return self

    def effective_encode(self, output: str) -> EncodeConfig:
        """Apply the output's overrides to `encode`; its own prompt replaces a general prompt_name, and vice versa."""
        override = self.outputs[output].encode
        update = {name: getattr(override, name) for name in override.model_fields_set}
        for one, other in (("prompt_name", "prompt"), ("prompt", "prompt_name")):
            if update.get(one) is not None:
                update[other] = None
        return self.encode.model_copy(update=update)

    def effective_chunk_size(self, output: str) -> int | Literal["auto"]:
        """Give the number of distinct texts in a chunk of that output."""
        return self.outputs[output].chunk.size or self.chunk.size


def model_spec(model: ModelConfig, path: str | None, revision: str | None) -> ModelSpec:
    """Make what workers get, with the folder (None = a plug-in, or not known) and the revision that were found."""
    said = model.model_dump(include={*ModelSpec.__dataclass_fields__} - {"path", "revision"}, mode="json")
    return ModelSpec(**said, path=path, revision=revision)


def encode_spec(encode: EncodeConfig) -> EncodeSpec:
    """Make what workers get: what shapes the vectors; batches do not."""
    return EncodeSpec(**encode.model_dump(include={*EncodeSpec.__dataclass_fields__}))


def resolve_limits(encode: EncodeConfig, device_kind: str, *, plugin: bool) -> Limits:
    """Resolve `auto` for the device; a plug-in batches by rows alone, since its tokens cannot be counted."""
    rows = None if encode.batch_size == "auto" else int(encode.batch_size)
    if plugin or encode.batch_tokens is None:
        return Limits(rows or AUTO_ROWS)
    measured = encode.batch_tokens == "auto" and device_kind == "cuda"
    tokens = AUTO_TOKENS[device_kind] if encode.batch_tokens == "auto" else int(encode.batch_tokens)
    # No text has less than one token, so a row cap of as many rows as tokens caps nothing.
    return Limits(rows or tokens, tokens, padding=PADDING_TOKENS[device_kind], measured=measured)
