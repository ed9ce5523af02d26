"""A model converted for OpenVINO: its files, and what a worker has to know to use them without the model's own.

All of it stays valid for as long as `made_from` is what it would be made from now.
"""

from dataclasses import dataclass
from pathlib import Path

from chunkvisor_worker.contract.arithmetic import Quantized
from chunkvisor_worker.contract.files import FileIn
from chunkvisor_worker.contract.layershapes import LayerShapes
from chunkvisor_worker.contract.messages import EncodeSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class ConvertedFiles:
    """Every path in the folder of a converted model."""

    folder: Path

    network = FileIn("model.xml")
    """From token ids to the model's vector, pooling included; for batches of any shape."""
    weights = FileIn("model.bin")
    tokenizer = FileIn("tokenizer.json")
    """As the package tokenizers reads it, without truncation and padding."""
    record = FileIn("converted.json")
    """Written last."""
    compared = FileIn("compared.npy")
    """Of a quantised model, until the supervisor has read it: the vectors of some texts in float32, then those in int8;
    float32 of shape (2, texts, dimension)."""

    @property
    def content(self) -> tuple[Path, ...]:
        """What the record has a digest of."""
        return (self.network, self.weights, self.tokenizer)


@dataclass(frozen=True, slots=True)
class TextSample:
    """Some texts of an output."""

    encode: EncodeSpec
    """How they are encoded."""
    count: int


@dataclass(frozen=True, slots=True)
class ConvertRequest:
    """What `python -m chunkvisor_worker.convert` is to do."""

    model: ModelSpec
    made_from: str
    """Stands in the record: tells this conversion apart from all others."""
    target: str
    """Folder of the converted model; it is empty."""
    texts: str = ""
    """File with a JSON string a line: the texts by which the model is quantised to int8. Empty = it is not."""
    samples: tuple[TextSample, ...] = ()
    """Whose they are, in that order."""
    plain: str = ""
    """Folder of the same model converted in float32, of which the quantised one is made. Empty = it is converted first.
    """


@dataclass(frozen=True, slots=True)
class Converted:
    """What a worker has to know."""

    made_from: str
    digests: dict[str, str]
    """sha256 of each file, by its name."""
    inputs: tuple[str, ...]
    """Of the network: input_ids, attention_mask and, for some, token_type_ids; each int64 of shape (rows, tokens)."""
    dimension: int
    pad_id: int
    pad_type_id: int
    pads_left: bool
    truncates_left: bool
    table_rows: int | None
    """Of the input embedding table; None = unknown."""
    max_length: int | None
    """Tokens that the model reads by itself; None = no limit."""
    positions: int | None
    """Tokens that it has positions for; None = it names no limit."""
    prompts: dict[str, str]
    default_prompt_name: str | None
    pools_prompt: bool
    """Whether the tokens of a prompt count in the pooling."""
    difference: float
    """Largest difference of a vector to the original's, relative to its largest component, on a sample."""
    versions: dict[str, str]
    """Of the libraries that have converted it."""
    layers: LayerShapes = LayerShapes()  # noqa: RUF009 - frozen
    """Unknown of models that an earlier version has converted."""
    quantized: Quantized | None = None
    """None = its numbers are float32."""
