"""Values that a key of the config chooses from; a module without pydantic."""

from enum import StrEnum

Dtype = StrEnum("Dtype", ["AUTO", "FLOAT32", "FLOAT16", "BFLOAT16"])
"""Of the model's weights on the device; AUTO is the checkpoint's own."""
EngineKind = StrEnum("EngineKind", ["LOCAL", "RAY"])
Start = StrEnum("Start", ["FRESH", "WARM", "AUTO"])
"""How a worker starts: in a new interpreter, or forked from a template process that has loaded the
model."""
OnBadRow = StrEnum("OnBadRow", ["QUARANTINE", "FAIL"])
FinalFormat = StrEnum("FinalFormat", ["NPY", "PARQUET"])
FinalDtype = StrEnum("FinalDtype", ["FLOAT32", "FLOAT16"])
"""Of the numbers in a final file."""
