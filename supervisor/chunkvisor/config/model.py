"""The configuration of a run as a validated, frozen model; `load` reads the YAML and puts errors into words.

The docstring of a key is its description in the JSON Schema, here and in the modules of the sections. A wrong value
raises pydantic.ValidationError, with the errors of `sentences` beside pydantic's own for missing and unknown keys.
"""

from difflib import get_close_matches
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from chunkvisor.config import paths, values
from chunkvisor.config.choices import EngineKind, FinalDtype
from chunkvisor.config.modelsection import ModelConfig
from chunkvisor.config.outputsection import REPORT, OutputConfig, distinct_names, files_of
from chunkvisor.config.sections import (
    ChunkConfig,
    EncodeConfig,
    EngineConfig,
    IngestConfig,
    MetricsConfig,
    RecoveryConfig,
    Section,
    WorkersConfig,
)
from chunkvisor.config.sentences import refused
from chunkvisor.config.values import empty


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
    env: Annotated[dict[values.EnvName, values.EnvValue], BeforeValidator(empty)] = Field(default={})
    """More environment variables for the workers; not those that chunkvisor sets itself, such as
    CUDA_VISIBLE_DEVICES."""
    ingest: IngestConfig = IngestConfig()
    """How sources are read."""
    metrics: MetricsConfig = MetricsConfig()
    """Figures for a monitoring system."""
    notify: values.Addresses = ()
    """Addresses that are told of the end, of stalls and of the first bad row. They may hold passwords, and are never
    repeated anywhere."""
    outputs: Annotated[dict[values.OutputName, OutputConfig], BeforeValidator(empty), AfterValidator(distinct_names)]
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
        taken = {file.casefold(): name for name, output in self.outputs.items() for file in files_of(name, output)}
        taken[REPORT] = "chunkvisor itself"
        for name, members in self.combine.items():
            for member in members:
                if member not in self.outputs:
                    near = get_close_matches(member, self.outputs, 1)
                    hint = f"; the nearest is {near[0]}" if near else ""
                    raise refused(f"combine.{name}: there is no output {member}{hint}")
            dtypes = {self.outputs[member].dtype: member for member in members}
            if len(dtypes) > 1:
                said = " and ".join(f"{member} is of {dtype}" for dtype, member in dtypes.items())
                raise refused(f"combine.{name}: {said}; only outputs of one dtype can be put side by side")
            beside = [f"{name}.ranges.npy"] * (FinalDtype.INT8 in dtypes)
            for file in (f"{name}.json", f"{name}.quarantined.jsonl", f"{name}.npy", *beside):
                if (owner := taken.setdefault(file.casefold(), f"combine.{name}")) != f"combine.{name}":
                    raise refused(f"combine.{name} would need the name {file}, which {owner} has; rename it")
            conditions = {self.outputs[member].where for member in members}
            if len(conditions) > 1:
                raise refused(f"combine.{name}: {' and '.join(members)} differ in `where`: their rows are others")
        return self

    @model_validator(mode="after")
    def _possible_for_a_plugin(self) -> Self:
        if self.model.is_plugin and self.model.pooling is not None:
            raise refused("model.pooling is for a model of sentence-transformers; a plug-in encoder pools by itself")
        for name in self.outputs if self.model.is_plugin else ():
            encode = self.effective_encode(name)
            if encode.prompt_name is not None:
                raise refused(
                    f"output {name}: encode.prompt_name names a prompt of the model; a plug-in has none; write the "
                    "prompt itself: encode.prompt"
                )
            for key in ("task", "kwargs"):
                if getattr(encode, key):
                    raise refused(
                        f"output {name}: encode.{key} is for a model of sentence-transformers; a plug-in encoder gets "
                        "texts alone: give it what it needs as model.kwargs"
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
