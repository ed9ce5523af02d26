"""Names of prompts, against those that a model's files list: told before a worker is started for it."""

import json
from collections.abc import Iterable
from pathlib import Path

from chunkvisor.config.model import Config
from chunkvisor.config.modelsection import ModelConfig
from chunkvisor.errors import config_error
from chunkvisor_worker.contract.files import read_bounded

_BUILT_IN = ("query", "document")
"""What every model of sentence-transformers has, empty where its files say nothing (its `_default_prompts`, 6.2)."""


def refuse_unknown_prompts(config: Config, folder: str | None) -> None:
    """Raises Halt (78) where an output asks for a prompt that the model in the folder has not.

    Where the folder does not tell, because it has no such file or brings code of its own, the worker decides.
    """
    if folder is None or config.model.is_plugin or config.model.trust_remote_code:
        return
    if (known := _prompts(Path(folder), config.model)) is None:
        return
    for output in config.outputs:
        name = config.effective_encode(output).prompt_name
        if name is not None and name not in (*known, *_BUILT_IN):
            raise config_error(
                f"output {output}: the model {config.model.name} has no prompt named {name!r}",
                why=_has(known),
                remedy="correct encode.prompt_name, or write the text itself: encode.prompt",
            )


def _prompts(folder: Path, model: ModelConfig) -> list[str] | None:
    try:
        found = json.loads(read_bounded(folder / "config_sentence_transformers.json") or b"")
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    saved, given = found.get("prompts") or {}, model.kwargs.get("prompts") or {}
    return [*saved, *given] if isinstance(saved, dict) and isinstance(given, dict) else None


def _has(names: Iterable[str]) -> str:
    listed = ", ".join(map(repr, dict.fromkeys(names)))
    return f"its prompts are {listed}" if listed else "its config_sentence_transformers.json names no prompts"
