"""The messages between the parent and its children, as frozen dataclasses.

`wire` has their JSON form.
"""

from collections import Counter
from dataclasses import field
from enum import StrEnum
from typing import Any

from chunkvisor_worker.contract.frozen import frozen


class Phase(StrEnum):
    """What a worker is doing; the same fault means different things in different phases."""

    START = "start"
    IMPORT = "import"
    MODEL_LOAD = "model_load"
    TOKENIZE = "tokenize"
    READY = "ready"
    CUDA_INIT = "cuda_init"  # the CUDA context is made
    WEIGHTS_COPY = "weights_copy"  # the weights go from host memory to the device
    FORWARD = "forward"
    WRITE = "write"
    DONE = "done"


# `chunkvisor_worker.fetch` takes these in the place of a backend of sentence-transformers.
ONLY_ASK = "ask"  # nothing but the commit is looked up
NO_WEIGHTS = "none"  # all files but weights


@frozen
class ModelSpec:
    """The model that the worker builds. A plug-in's factory gets this object."""

    name: str
    path: str | None = None
    """Folder of the model's files; None for a plug-in, which may read `name` as it likes."""
    revision: str | None = None
    dtype: str = "auto"
    max_length: int | None = None
    pooling: str | None = None
    """Mean, cls, lasttoken or max; None is what the model's modules.json says."""
    trust_remote_code: bool | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    encoder: str = "sentence-transformers"
    # Commit or digest of what its files name outside its folder, by hub id or path.
    outside: dict[str, str] = field(default_factory=dict)
    hub: str | None = None  # folder of a cache of the hub that has those commits, if it exists


@frozen
class EncodeSpec:
    """What shapes the vectors, next to the model."""

    normalize: bool = False
    prompt: str | None = None
    prompt_name: str | None = None
    truncate_dim: int | None = None
    task: str | None = None
    """Query or document: as `encode_query` and `encode_document` of sentence-transformers."""
    kwargs: dict[str, Any] = field(default_factory=dict, hash=False)
    """More arguments for the model's own `encode`."""


@frozen
class Limits:
    """Upper bounds of one batch. As a line on a worker's standard input they open its gate."""

    rows: int  # at least 1
    tokens: int | None = None
    """Padded tokens; None = no bound. A longer text is a batch by itself."""
    padding: int | None = None  # tokens of padding; None = no bound
    measured: bool = False
    """Whether a worker on a GPU lowers `tokens` to what fits the memory that it finds free."""
    one_text_per_call: bool = False
    """Whether a plug-in gets one text a call as well: the text that fails is looked for."""


# The line on a worker's standard input by which it ends after the current batch.
LEAVE = b"leave\n"


@frozen
class Spec:
    """One attempt at one chunk."""

    fingerprint: str
    """Of everything that shapes the vectors; a result counts only under the same one."""
    output: str
    chunk: int
    attempt: int
    start: int  # the attempt's distinct texts are those from `start` up to, and without, `stop`
    stop: int
    texts_digest: str
    device: str  # "cpu" or "cuda"; the parent shows the worker one GPU only
    model: ModelSpec
    encode: EncodeSpec
    threads: int = 0  # threads for the CPU's share of the work; 0 = the libraries' own choice
    import_path: tuple[str, ...] = ()  # folders put on sys.path for a plug-in encoder
    # Positions, counted from `start`, of texts that have vectors already: they are not in
    # texts.jsonl, and their rows in the file of vectors stay zero.
    skip: tuple[int, ...] = ()
    limits: Limits = Limits(rows=32)
    """For a worker run by hand; a supervised one gets its limits at the gate."""
    # Whether the last line of texts.jsonl is a text of another chunk that has a vector: it is
    # encoded first, in a batch by itself, to show that device and model work.
    canary: bool = False
    fresh: bool = False  # made by a new interpreter, not by a fork of a template
    blocking_launches: bool = False  # with CUDA_LAUNCH_BLOCKING=1: a traceback names the kernel
    canary_row: int | None = None
    """The line of texts.jsonl that does so if no such text is known; its vector is kept."""


def merge_peaks(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """Return the higher value of each name."""
    return dict(Counter(one) | Counter(other))


@frozen
class Beat:
    """A sign of progress, which the worker rewrites in `beat.json`."""

    seq: int  # rises with every beat; the parent measures by its own clock when it changes
    pid: int
    phase: Phase
    rows_done: int = 0
    rows_total: int = 0
    tokens_done: int = 0
    padded_tokens: int = 0  # of the batches that are done; 0 = unknown
    batch_rows: int = 0  # of the batch under way
    batch_tokens: int = 0  # padded tokens of the batch under way; 0 = unknown
    freed: bool = False  # the device is free for the next worker, though this one has not ended
    opening_s: float = 0.0
    """From the gate to the first batch (CUDA context, copy of the weights); 0 = not there yet."""
    end: int = 0  # equals `seq`, unless the beat was read while it was overwritten
    memory: dict[str, int] = field(default_factory=dict)
    """Peaks so far: `resident_bytes` of the process; on a GPU torch's `reserved_bytes` and
    `allocated_bytes`."""
    batch_peaks: dict[str, int] = field(default_factory=dict)
    """Most bytes allocated on a GPU during a batch, by its padded tokens, rounded up to a power of
    two."""


@frozen
class Loaded:
    """What a model of sentence-transformers is, as loaded; short, since each result repeats it."""

    modules: tuple[str, ...]  # class of each module, in order
    pooling: str  # mean, cls, lasttoken, …; empty if no module pools
    causal: bool | None  # whether a token sees only those before it; None = unknown
    prompt: str | None  # text that stands before every text, the model's default prompt included
    padding_side: str  # left or right; empty if there is no tokenizer
    probe_ids: tuple[int, ...]
    """Token ids of one fixed text, in which two tokenizers usually differ."""
    notes: tuple[str, ...]  # what the libraries warned of, and what else a person should know


@frozen
class Facts:
    """What the worker found out about the model, for the manifest."""

    dimension: int
    dtype: str = ""  # of the weights as loaded; empty for a plug-in that does not say
    max_length: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    linear: str = ""
    """What computes the linear layers on a CPU: "torch", or "onednn" with packed weights."""
    loaded: Loaded | None = None  # none for a plug-in
    counts_cut: bool = False
    """Whether it counts the tokens of texts that it cuts; a plug-in or a slow tokenizer cannot."""


@frozen
class Result:
    """What a worker that succeeded says of its vectors; the parent verifies it."""

    fingerprint: str
    output: str
    chunk: int
    start: int
    stop: int
    digest: str  # xxh3-128 of embeddings.npy
    size_bytes: int
    facts: Facts
    limits: Limits
    tokens: int = 0  # tokens of the texts after truncation, special tokens included; 0 = unknown
    padded_tokens: int = 0
    phase_s: dict[str, float] = field(default_factory=dict)
    """Seconds in each phase; `ready` is the wait at the gate."""


@frozen
class Cause:
    """One exception of a chain."""

    name: str  # qualified class name, e.g. torch.OutOfMemoryError.
    bases: tuple[str, ...]  # qualified names of its base classes, nearest first
    message: str
    error_code: int | None = None  # torch.AcceleratorError.error_code: the cudaError_t
    errno: int | None = None
    http_status: int | None = None


@frozen
class Fault:
    """Why there is no result."""

    phase: Phase
    chain: tuple[Cause, ...]  # the exception raised first, then its causes; never empty
    traceback: str
    batch_rows: int = 0
    batch_tokens: int = 0
    rows_done: int = 0
    wait_s: float = 0.0  # that a server or the encoder asks to wait before the next try


@frozen
class BatchLine:
    """A line of an attempt's batch log: one of three kinds, by the field that is set.

    `{"rows": [4, 7]}` begins a batch, `{"digest": …}` ends the oldest that has begun; between
    them, once, `{"facts": …}`.
    """

    # Rows of the batch in the file of vectors; empty for a canary of another chunk.
    rows: tuple[int, ...] | None = None
    facts: Facts | None = None
    """When the file of vectors is made, or a canary of another chunk has its vector."""
    digest: str | None = None
    """xxh3-64 of the batch's vectors, which are now in the file."""


@frozen
class ProvokedFault:
    """A fault that `chunkvisor.testing` has asked for, and where it strikes."""

    name: str  # as `chunkvisor_worker.drill` has it
    chunk: int
    output: str | None = None  # none = any
    times: int = 1  # in how many attempts


@frozen
class ProbedGpu:
    """A GPU on which torch has computed."""

    name: str
    capability: tuple[int, ...]  # compute capability, (major, minor)
    total_bytes: int


@frozen
class ProbeReport:
    """What torch is here, and how far it gets with the GPU.

    Rewritten before every step, which may kill the process.
    """

    phase: Phase
    """The step that is under way or failed: IMPORT, FORWARD (on the CPU), CUDA_INIT, or DONE."""
    versions: dict[str, str] = field(default_factory=dict)  # of the installed packages, by name
    cuda: str | None = None  # CUDA version torch was built for; None = a build without
    hip: str | None = None  # ROCm version torch was built for
    gpus: tuple[ProbedGpu, ...] = ()
    fault: Fault | None = None


# No message of a template is longer, so that a socket's buffer holds several (socket(7)).
MESSAGE_LIMIT_BYTES = 64 << 10


@frozen
class TemplateSpec:
    """What a template process loads. Its messages are JSON, one a datagram."""

    model: ModelSpec
    device: str  # "cpu" or "cuda", for the workers to come; the template itself touches no device
    import_path: tuple[str, ...] = ()  # folders put on sys.path for a plug-in encoder


@frozen
class TemplateOrder:
    """Tells the template to fork a worker for the attempt in the folder.

    The descriptors of its standard input and its log come along.
    """

    folder: str
    environment: dict[str, str]  # what differs from the template's
    removed: tuple[str, ...]  # variables that only the template has


@frozen
class TemplateNews:
    """From the template: one of `phase_s`, `unfit`, `forked` and `ended` is set."""

    phase_s: dict[str, float] | None = None
    """It has loaded, in this time by phase, and forks from now on."""
    unfit: str | None = None  # why it cannot be forked from; fault.json in its folder may say more
    forked: int | None = None
    """Pid of the new worker, whose pidfd comes along; 0 if none could be forked."""
    ended: int | None = None  # pid of a worker that has ended, with all of its group
    returncode: int = 0  # of that worker, as subprocess gives it: negative for a signal


@frozen
class LengthsTask:
    """Texts of one output, for `plan` to know their lengths in tokens."""

    texts: str  # file of the texts in UTF-8, one after the other
    offsets: str
    """File of uint64, little-endian, one more than there are texts: where each begins, and the
    end."""
    count: int  # texts in the files
    chunk_size: int  # texts in a chunk; batches never reach beyond one
    every: int  # of how many chunks one is looked at, beginning with the first; 1 = all
    encode: EncodeSpec
    limits: Limits


@frozen
class LengthsRequest:
    """Texts of several outputs, for one model."""

    model: ModelSpec
    """Without `path`, the tokenizer's files are looked up in the hub, and nothing else of the
    model."""
    tasks: tuple[LengthsTask, ...]


@frozen
class LengthsReport:
    """The answer to one task."""

    lengths: str
    """File of an int32 array of shape (texts looked at,): tokens before any cut, special ones
    included."""
    max_length: int | None  # tokens the model reads of a text, None if it has no limit
    estimated: bool
    """Tokens could not be counted, and were estimated from bytes, as the encoder will do."""
    tokens: int  # of the texts looked at, as cut by `max_length`
    padded_tokens: int  # tokens of their batches, padding included
    batches: int
    blank_ends: int  # texts looked at that end with a blank


@frozen
class LengthsAnswer:
    """The reports, in the order of the tasks."""

    path: str  # folder of the model, or of as much of it as is here
    reports: tuple[LengthsReport, ...]
