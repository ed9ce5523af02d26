"""The section `model`: which model makes the vectors."""

import os
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from chunkvisor.config import paths, values
from chunkvisor.config.choices import Dtype
from chunkvisor.config.paths import joined
from chunkvisor.config.sections import Section
from chunkvisor.config.sentences import expected, refused
from chunkvisor.config.values import SENTENCE_TRANSFORMERS

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


class ModelConfig(Section):
    """`model`: which model makes the vectors."""

    encoder: values.Encoder = SENTENCE_TRANSFORMERS
    """sentence-transformers, or "package.module:factory" of a plug-in encoder."""
    name: Annotated[values.Name, expected("the name of a model or of a local folder", text=True)]
    """Hub id or local folder; a plug-in encoder gets it as it is."""
    revision: Annotated[values.Name | None, expected("a branch, tag or commit hash, or null", text=True)] = None
    """Branch, tag or commit of the hub; resolved to a commit hash once. null = the default branch."""
    dtype: Annotated[Dtype, expected("auto, float32, float16 or bfloat16")] = Dtype.AUTO
    """Type of the weights on the device, not of the vectors; auto = the checkpoint's own."""
    max_length: values.PositiveOrNull = None
    """Tokens after which a text is cut; null = the model's own limit."""
    pooling: Annotated[
        Literal["mean", "cls", "lasttoken", "max"] | None, expected('"mean", "cls", "lasttoken", "max" or null')
    ] = None
    """How the vectors of a text's tokens become one; only for a model without modules.json, whose files do not say."""
    trust_remote_code: values.FlagOrNull = None
    """Run Python code that comes with the model: true, only for models you trust. false = leave that code out on
    purpose, and take the class of transformers; null = undecided."""
    kwargs: values.PlainValues = Field(default={})
    """More arguments for the model's constructor, such as attn_implementation."""
    expect: paths.FilePath | None = None
    """File (.jsonl) of texts and the vectors that the model must give for them; null = none."""

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
