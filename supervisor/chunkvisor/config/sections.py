"""Sections of the config of which each stands for itself; a key's docstring is its description in the JSON Schema."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, StrictStr, ValidationInfo, field_validator, model_validator

from chunkvisor.config import paths, values
from chunkvisor.config.choices import EngineKind, OnBadRow, Start
from chunkvisor.config.sentences import expected, refused
from chunkvisor.config.values import empty


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


_OWNED_KWARGS = {
    "batch_size": "use the key encode.batch_size",
    "convert_to_numpy": "leave it out",
    "convert_to_tensor": "leave it out",
    "device": "use the key device",
    "normalize_embeddings": "use the key encode.normalize",
    "output_value": "leave it out: a run makes one vector for each text",
    "pool": "use the key device",
    "precision": "use the key outputs.NAME.dtype",
    "prompt": "use the key encode.prompt",
    "prompt_name": "use the key encode.prompt_name",
    "sentences": "the texts are those of the source",
    "show_progress_bar": "leave it out",
    "truncate_dim": "use the key encode.truncate_dim",
}
"""Arguments of sentence-transformers' own encode that keys of the config decide."""


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
    task: Annotated[Literal["query", "document"] | None, expected('"query", "document" or null')] = None
    """query or document: encode as encode_query or encode_document of sentence-transformers do, with the prompt and
    the part of the model that are for it."""
    kwargs: values.PlainValues = Field(default={})
    """More arguments for the model's own encode, such as {task: retrieval.passage}."""
    truncate_dim: values.PositiveOrNull = None
    """Keep only this many leading dimensions; null = all."""

    @field_validator("kwargs")
    @classmethod
    def _no_owned_kwargs(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        if owned := sorted(_OWNED_KWARGS.keys() & kwargs):
            raise refused("; ".join(f"{name} is not for here: {_OWNED_KWARGS[name]}" for name in owned))
        return kwargs

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
    """Seconds from SIGTERM to the end of the run: the chunks under way are finished by then, or saved as they are. Keep
    it shorter than the time after which whatever sent the SIGTERM kills the run."""
    on_bad_row: Annotated[OnBadRow, expected('"quarantine" or "fail"')] = OnBadRow.QUARANTINE
    """quarantine = a row that cannot be encoded becomes NaN and is listed in the manifest; fail = the run ends."""
    max_bad_rows: values.NotNegative = 100
    """With more quarantined rows than this the run ends: usually the config is wrong, not the data."""


class IngestConfig(Section):
    """`ingest`: how sources are read."""

    memory_limit: values.Memory = ByteSize(1 << 30)
    """Memory for reading the sources."""


class MetricsConfig(Section):
    """`metrics`: figures for a monitoring system."""

    textfile: paths.PromFile | None = None
    """File, `*.prom`, that is kept up to date in Prometheus' text format; its folder must exist. null = none."""
