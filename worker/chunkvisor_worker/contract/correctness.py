"""What it takes for a model to give the right vectors, for the parent and the worker to say.

How far rounding moves a vector; which versions a model's own code needs; and what the config must
say if that code is left out.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunkvisor_worker.contract.files import read_json
from chunkvisor_worker.contract.messages import ModelSpec

# How far a vector may lie from the one in float32, relative to its length, by the dtype of the
# weights (as measured in docs/how-to/diagnose.md). float32 leaves room for TF32; half precision
# rounds in each layer of a model.
_ALLOWED = {"float32": 0.01, "float16": 0.03}
# For bfloat16, quantized weights, and weights of an unknown dtype (plug-ins).
_ALLOWED_ELSE = 0.15


def allowed_difference(dtype: str, model: ModelSpec) -> float:
    """Return how far a vector may lie from that in float32, relative to its length.

    `dtype` is that of the weights as loaded, such as `bfloat16`; empty = not known.
    """
    if "quantization_config" in model.kwargs:
        return _ALLOWED_ELSE
    return _ALLOWED.get(dtype, _ALLOWED_ELSE)


def numbers_of(version: str) -> list[int]:
    """Return such as [4, 57, 6], which compares as versions do: as text, 10 is less than 5."""
    return [int(each) for each in re.findall(r"\d+", version)]


def install_for(saved: str) -> str:
    """Return the pip command for a model's code that was saved by version `saved` of transformers.

    sentence-transformers 5.7.0 is the last that takes transformers 4. Code of before 4.50 calls
    what later ones lack, or replaces methods that they do not call.
    """
    numbers = numbers_of(saved)
    if numbers >= [5]:
        return f"pip install transformers=={'.'.join(map(str, numbers[:3]))}"
    version = "4.49.0" if numbers < [4, 50] else "4.57.6"
    return f"pip install transformers=={version} sentence-transformers==5.7.0"


def kwargs_without_code(folder: Path, kwargs: Mapping[str, Any]) -> str:
    """Return the line for the config by which transformers' class does what the model's code did.

    Empty if `kwargs`, the present `model.kwargs`, are enough. `folder` has config.json and
    tokenizer_config.json. In the model's code a token may see later ones although config.json does
    not say so; hence `is_causal: false`.
    """
    config = read_json(folder / "config.json")
    tokenizer = read_json(folder / "tokenizer_config.json")
    needed = dict[str, Any]()
    own = {key: kwargs.get(key) or {} for key in ("config_kwargs", "processor_kwargs")}
    has_code = any(key.startswith("AutoModel") for key in config.get("auto_map") or ())
    if has_code and "is_causal" not in {**config, **own["config_kwargs"]}:
        needed["config_kwargs"] = own["config_kwargs"] | {"is_causal": False}
    added = {key: True for key in ("add_bos_token", "add_eos_token") if tokenizer.get(key) is True}
    if not added.keys() <= own["processor_kwargs"].keys():
        needed["processor_kwargs"] = added | own["processor_kwargs"]
    return config_line(kwargs, **needed) if needed else ""


def config_line(kwargs: Mapping[str, Any], **added: Any) -> str:
    """Return the line `model.kwargs: {…}` for the config, with `added` in it and secrets masked."""
    return re.sub(r'"(\w+)": ', r"\1: ", f"model.kwargs: {json.dumps({**kwargs, **added})}")
