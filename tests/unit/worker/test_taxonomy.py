"""The taxonomy of faults as data: which exception, in which phase, falls under which rule; and
torch's figures.
"""

import errno
import io
import itertools
import json
import re
import signal
import sqlite3
import urllib.error
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkvisor_worker import Busy
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import Cause, Fault, Phase
from chunkvisor_worker.contract.rules import RULES
from chunkvisor_worker.contract.taxonomy import LINE_CHARS, Known, diagnose, diagnose_log, read_oom
from chunkvisor_worker.faults import fault_of
from chunkvisor_worker.job import TextsDamagedError
from chunkvisor_worker.plugin import BadOutputError, PluginError
from chunkvisor_worker.tokenizer import WrongModelError
from harness import ROOT
from late import Late
from torchwords import oom

LOAD, START, TOKENIZE, INIT, FORWARD, WRITE = (
    Phase.MODEL_LOAD,
    Phase.START,
    Phase.TOKENIZE,
    Phase.CUDA_INIT,
    Phase.FORWARD,
    Phase.WRITE,
)
OF_RULE = {rule.name: rule for rule in RULES}


def stand_in(qualified: str, *bases: type[BaseException]) -> Any:
    """A class of the same name and bases as one that torch, the hub or Rust defines."""
    module, _, name = qualified.rpartition(".")
    return type(name, bases or (Exception,), {"__module__": module})


TorchOOM = stand_in("torch.OutOfMemoryError", RuntimeError)
Accelerator = stand_in("torch.AcceleratorError", RuntimeError)
Panic = stand_in("pyo3_runtime.PanicException", BaseException)
Safetensor = stand_in("safetensors._safetensors_rust.SafetensorError")
HubHTTP = stand_in("huggingface_hub.errors.HfHubHTTPError", OSError)
Connect = stand_in("httpx2.ConnectError", stand_in("httpx2.TransportError"))
NotCached = stand_in("huggingface_hub.errors.LocalEntryNotFoundError", FileNotFoundError)


def replied(status: int, reply: str = "") -> BaseException:
    """The error that urllib raises for the reply of a server that a plug-in asks."""
    return urllib.error.HTTPError("http://h", status, "why", Message(), io.BytesIO(reply.encode()))


def cuda(code: int, text: str = "?") -> BaseException:
    """torch.AcceleratorError as torch 2.14 words it, advice included."""
    error: Any = Accelerator(
        f"CUDA error: {text}\nSearch for `cudaErrorMemoryAllocation' in "
        "https://docs.nvidia.com/cuda for more information.\nCUDA kernel errors might be "
        "asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with "
        "`TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    error.error_code = code
    return error


def count_error(number: int, text: str) -> BaseException:
    """What torch raises if cuInit fails."""
    return RuntimeError(
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
        f"calling NumCudaDevices() that might have already set an error? Error {number}: {text}"
    )


def nvml(file: str) -> BaseException:
    """NVML's assertion."""
    called = "DriverAPI::get()->nvmlDeviceGetHandleByPciBusId_v2_( pci_id, &nvml_device)"
    return RuntimeError(
        f'NVML_SUCCESS == {called} INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/{file}":1377, '
        f"please report a bug "
        "to PyTorch. "
    )


def hub(status: int) -> BaseException:
    """The hub's answer, at the end of transformers' chain."""
    answer = HubHTTP("no")
    answer.response = type("Response", (), {"status_code": status})()
    return chained(
        OSError(
            "We couldn't connect to 'https://hf.co' to load the files, and couldn't find them in "
            "the cache."
        ),
        NotCached(
            "An error happened while trying to locate the file on the Hub and we cannot find it in "
            "the cache"
        ),
        answer,
    )


def chained(*links: BaseException) -> BaseException:
    """The first, raised from the second, and so on."""
    for link, cause in itertools.pairwise(links):
        link.__cause__ = cause
    return links[0]


OOM = oom("2.00 GiB", "79.10 GiB", "1.20 GiB", "77.0 GiB")
CUBLAS = "CUDA error: CUBLAS_STATUS_{} when calling `cublasCreate(handle)`"
CUDNN = "cuDNN error: CUDNN_STATUS_{}"
CPU_ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 4503599627370496 bytes. Error code 12 (Cannot allocate memory)"
)
THREAD_POOL = (
    "The global thread pool has not been initialized.: ThreadPoolBuildError { kind: IOError(Os { "
    "code: 11 })"
)
RUNTIME = RuntimeError

# A row is a line or two.
# fmt: off
TABLE: list[tuple[Phase, str, BaseException]] = [
    # GPU memory, in all spellings
    *((FORWARD, "gpu-out-of-memory", error) for error in (
        TorchOOM(OOM), RUNTIME(OOM), chained(ValueError("batch failed"), TorchOOM(OOM)),
        TorchOOM("Tried to allocate more than 1EB memory."), cuda(2, "out of memory"),
        RUNTIME("Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently "
            "allocated     : 1"),
        RUNTIME("CUDA driver error: out of memory"), RUNTIME(CUBLAS.format("ALLOC_FAILED")),
        RUNTIME(CUBLAS.format("NOT_INITIALIZED")), RUNTIME(CUDNN.format("INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED")),
        stand_in("cupy.cuda.memory.OutOfMemoryError", MemoryError)("Out of memory allocating 1,024 "
            "bytes"),
        RUNTIME("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1024 bytes."),
    )),
    *((INIT, "gpu-full-before-work", error) for error in (
        TorchOOM(OOM), cuda(2, "out of memory"), count_error(2, "out of memory"), nvml("CUDACachingAllocator.cpp"),
        RUNTIME(CUBLAS.format("NOT_INITIALIZED")),
    )),
    (FORWARD, "nvml-assert-allocator", nvml("CUDACachingAllocator.cpp")),
    (INIT, "nvml-assert-expandable-segments", nvml("PeerToPeerAccess.cpp")),
    # Sticky faults
    (FORWARD, "device-side-assert", cuda(710)),
    (FORWARD, "device-side-assert", chained(TorchOOM(OOM), cuda(710))),
    *((FORWARD, "illegal-memory-access", cuda(code)) for code in (700, 702, 719)),
    # the number beats the text
    (FORWARD, "illegal-memory-access", cuda(700, "device-side assert triggered")),
    *((FORWARD, "context-lost", cuda(code)) for code in range(714, 719)),
    *((FORWARD, "context-lost", cuda(code)) for code in (220, 226, 721, 911)),
    *((phase, "gpu-fault-before-work", cuda(code))
      for code in (1, 226, 700, 702, 710, 715, 719, 721, 999) for phase in (INIT, Phase.WEIGHTS_COPY)),
    *((FORWARD, "cuda-error", cuda(code)) for code in (1, 999)),
    # The driver's log does not count.
    (FORWARD, "cuda-error", cuda(1, "no\nThe CUDA driver logged these messages:\nCUDA error: out "
        "of memory")),
    (FORWARD, "cuda-library-failed", RUNTIME(CUBLAS.format("EXECUTION_FAILED"))),
    (FORWARD, "gpu-ecc-error", cuda(214)),
    (FORWARD, "gpu-lost", RUNTIME("NVML: GPU is lost")),
    # Driver and setup
    (INIT, "torch-without-cuda", AssertionError("Torch not compiled with CUDA enabled")),
    (INIT, "no-nvidia-driver", RUNTIME("Found no NVIDIA driver on your system. Please check")),
    (INIT, "driver-too-old", RUNTIME("The NVIDIA driver on your system is too old (found version "
        "11040).")),
    (INIT, "no-gpu-visible", RUNTIME("No CUDA GPUs are available")),
    (INIT, "gpu-exclusive", cuda(46)),
    (INIT, "gpu-services-not-ready", count_error(802, "system not yet initialized")),
    (INIT, "driver-library-mismatch", count_error(803, "unsupported display driver / cuda driver "
        "combination")),
    (INIT, "cuda-does-not-start", RUNTIME("CUDA driver initialization failed, you might not have a "
        "CUDA gpu.")),
    (INIT, "cuda-does-not-start", count_error(4711, "?")),
    *((INIT, "cuda-does-not-start", cuda(code)) for code in (304, 800, 801)),
    *((FORWARD, "gpu-not-supported-by-torch", cuda(code)) for code in (98, 200, 209, 218, 221, 222, 223, 300)),
    # Host
    (LOAD, "host-out-of-memory", MemoryError()),
    (FORWARD, "host-out-of-memory", RUNTIME(CPU_ALLOCATOR)),
    (LOAD, "host-out-of-memory", ImportError("libx.so: failed to map segment from shared object")),
    (FORWARD, "host-out-of-memory", OSError(errno.ENOMEM, "Cannot allocate memory")),
    (TOKENIZE, "process-limits", Panic(THREAD_POOL)),
    (LOAD, "process-limits", OSError(errno.EMFILE, "Too many open files")),
    (WRITE, "disk-full", OSError(errno.ENOSPC, "No space left on device")),
    (WRITE, "disk-full", sqlite3.OperationalError("database or disk is full")),
    (WRITE, "disk-full", Safetensor("Error while serializing: I/O error: No space left on device "
        "(os error 28)")),
    (WRITE, "disk-quota", OSError(errno.EDQUOT, "?")),
    (WRITE, "disk-failing", OSError(errno.EIO, "?")),
    (WRITE, "disk-read-only", OSError(errno.EROFS, "?")),
    (WRITE, "disk-stale", OSError(errno.ESTALE, "?")),
    (FORWARD, "file-too-large", OSError(errno.EFBIG, "?")),
    (LOAD, "no-file-locks", OSError(errno.ENOLCK, "?")),
    *((WRITE, "permission-denied", PermissionError(number, "?")) for number in (errno.EACCES, errno.EPERM)),
    (FORWARD, "unknown-on-texts", PermissionError(errno.EACCES, "?")),  # of a file that a text names
    (WRITE, "name-too-long", OSError(errno.ENAMETOOLONG, "?")),
    # Hub
    *((LOAD, "hub-busy", hub(status)) for status in (429, 503)),
    *((LOAD, "hub-access-denied", hub(status)) for status in (401, 403)),
    (TOKENIZE, "hub-unreachable", Connect("refused")),
    (LOAD, "hub-unreachable",
     chained(OSError("We couldn't connect to 'https://hf.co'"), NotCached("An error happened"), Connect("refused"))),
    (LOAD, "model-not-cached",
     chained(OSError("We couldn't connect to 'https://hf.co'"), NotCached("outgoing traffic has "
         "been disabled."))),
    # What a plug-in asks
    (FORWARD, "service-busy", Busy(5)),
    (FORWARD, "service-busy", replied(429)),
    *((FORWARD, "service-failed", replied(status)) for status in (408, 500, 529)),
    (FORWARD, "service-failed", replied(500, "out of memory")),
    *((FORWARD, "batch-too-large", replied(status, reply)) for status, reply in (
        (413, ""), (422, "batch size 64 > maximum allowed batch size 32"), (500, "too many inputs"))),
    *((FORWARD, "unknown-on-texts", replied(status, reply)) for status, reply in (
        (413, "`inputs` must have less than 512 tokens"), (422, "no such model"))),
    (FORWARD, "service-failed", chained(urllib.error.URLError("?"), ConnectionRefusedError(errno.ECONNREFUSED, "no"))),
    (FORWARD, "unknown-on-texts", replied(400)),
    # Model and configuration
    (INIT, "allocator-config", ValueError("Unrecognized key 'x' in Accelerator allocator config.")),
    (LOAD, "import-failed", ImportError("libcudart.so.13: cannot open shared object file: No such "
        "file")),
    (FORWARD, "import-failed", RUNTIME(CUDNN.format("SUBLIBRARY_LOADING_FAILED"))),
    (LOAD, "model-files-damaged", RUNTIME("PytorchStreamReader failed reading zip archive: no "
        "central directory")),
    (LOAD, "wrong-model", WrongModelError("it does not run under transformers 5: no argument "
        "attn_implementation")),
    (LOAD, "setting-impossible", ImportError("FlashAttention2 has been toggled on, but it cannot "
        "be used due to")),
    (LOAD, "setting-impossible", ValueError("model.max_length is 9000, but the model has positions "
        "for 512 tokens")),
    (Phase.IMPORT, "import-failed", SyntaxError("invalid syntax")),
    # Input
    (TOKENIZE, "text-not-unicode", UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not "
        "allowed")),
    (TOKENIZE, "text-not-unicode", ValueError("Unsupported input type: NoneType. Expected one of: "
        "str, dict")),
    (TOKENIZE, "unknown-on-texts", Panic("called `Option::unwrap()` on a `None` value")),
    # Our own
    (FORWARD, "bad-output", BadOutputError("because")),
    (Phase.IMPORT, "setting-impossible", PluginError("because")), (LOAD, "wrong-model", WrongModelError("because")),
    (TOKENIZE, "texts-damaged", TextsDamagedError("because")),
    # Everything else
    (FORWARD, "interrupted", chained(KeyboardInterrupt(), TorchOOM(OOM))),
    (LOAD, "unknown-at-load", ZeroDivisionError("division by zero")),
    (FORWARD, "unknown-on-texts", ZeroDivisionError("division by zero")),
    *((FORWARD, "encoder-broken", kind("?")) for kind in (UnboundLocalError, TypeError, AttributeError)),
    (WRITE, "unknown", ZeroDivisionError("division by zero")),
]
# fmt: on


def named(phase: Phase, error: BaseException) -> str:
    """The rule that the exception falls under, which has something to show."""
    found = diagnose(fault_of(error, phase))
    assert found.headline
    return found.rule.name


@pytest.mark.parametrize(
    ("phase", "rule", "error"),
    [pytest.param(*row, id=f"{at} {row[1]}") for at, row in enumerate(TABLE)],
)
def test_exception(phase: Phase, rule: str, error: BaseException) -> None:
    """An exception, raised in a phase, falls under one rule."""
    assert named(phase, error) == rule


def test_table_has_every_rule_that_an_exception_can_meet() -> None:
    """No rule with a sign goes untested, in this table or the others of the module."""
    tested = {row[1] for row in TABLE} | {row[2] for row in (*SLOW, *QUICK)}
    assert {rule.name for rule in RULES if rule.signs} == tested


# The real thing: each of these makes a library raise its own exception.
torch, transformers, hub_library = map(Late, ("torch", "transformers", "huggingface_hub"))
errors, utils = map(Late, ("huggingface_hub.errors", "huggingface_hub.utils"))
Provoke = Callable[[Path], Any]


def _transformers(config: str) -> Provoke:
    def load(folder: Path) -> None:
        (folder / "config.json").write_text(config)
        transformers.AutoModel.from_pretrained(str(folder))

    return load


def _full_disk(_: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        np.zeros(1_000_000).tofile(file)


def _surrogate(_: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).encode_batch(
        ["\ud800x"]
    )


def _safetensors(content: bytes) -> Provoke:
    def load(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(content)
        pytest.importorskip("safetensors").safe_open(path, "np")

    return load


def _hub(status: int, code: str = "", message: str = "") -> Provoke:
    def answer(_: Path) -> None:
        # httpx, or httpx2 since huggingface_hub 2
        http = pytest.importorskip(errors.HfHubHTTPError.__mro__[1].__module__.partition(".")[0])
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        request = http.Request("GET", "https://huggingface.co/api/models/a/b/revision/main")
        try:
            utils.hf_raise_for_status(http.Response(status, headers=headers, request=request))
        except errors.HfHubHTTPError as error:
            raise OSError("We couldn't connect to 'https://hf.co' to load the files") from error

    return answer


BERT = json.dumps(
    {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
)
LFS = b"version https://git-lfs.github.com/spec/v1\n"
# fmt: off
# With torch or transformers, which take seconds to import.
SLOW: list[tuple[Provoke, Phase, str]] = [
    (lambda _: torch.nn.Embedding(3, 2)(torch.tensor([5])), FORWARD, "token-out-of-range"),
    (lambda _: torch.empty(1 << 50), FORWARD, "host-out-of-memory"),
    (lambda _: torch.save(torch.zeros(1_000_000), "/dev/full"), WRITE, "disk-full"),
    (_transformers('{"model_type": "zzz"}'), LOAD, "unknown-at-load"),
    (_transformers(BERT), LOAD, "model-files-damaged"),
]
QUICK: list[tuple[Provoke, Phase, str]] = [
    (lambda _: np.zeros(1 << 45), FORWARD, "host-out-of-memory"),
    (_full_disk, WRITE, "disk-full"),
    (_surrogate, TOKENIZE, "text-not-unicode"),
    (_safetensors(LFS), LOAD, "model-files-damaged"),
    (_hub(429), LOAD, "hub-busy"),
    (_hub(403, "GatedRepo"), LOAD, "hub-access-denied"),
    (_hub(404, "RepoNotFound"), LOAD, "model-not-found"),
    (lambda _: hub_library.snapshot_download("chunkvisor-no/such-model", local_files_only=True), LOAD,
     "model-not-cached"),
]
# fmt: on


@pytest.mark.parametrize(
    ("provoke", "phase", "rule"),
    [
        *(
            pytest.param(*row, id=f"{at} {row[2]}", marks=pytest.mark.model)
            for at, row in enumerate(SLOW)
        ),
        *(pytest.param(*row, id=f"{at} {row[2]}, quick") for at, row in enumerate(QUICK)),
    ],
)
def test_real_exception(
    provoke: Callable[[Path], None], phase: Phase, rule: str, tmp_path: Path
) -> None:
    """What a library really raises falls under the rule that was written for it."""
    try:
        provoke(tmp_path)
    except pytest.skip.Exception:  # a BaseException, too
        raise
    except BaseException as error:
        found = named(phase, error)
    assert found == rule


THROWN = "terminate called after throwing an instance of "


@pytest.mark.parametrize(
    ("tail", "returncode", "rule"),
    [
        ("libgomp: Thread creation failed: Resource temporarily unavailable", 1, "process-limits"),
        ("Fatal Python error: Segmentation fault\n\nCurrent thread", -11, "segmentation-fault"),
        ("Fatal Python error: Bus error", -7, "segmentation-fault"),
        ("Fatal Python error: Aborted", -6, "aborted"),
        (f"{THROWN}'c10::Error'\n  what():  CUDA error: device-side assert triggered", -6, "device-side-assert"),
        (f"{THROWN}'std::bad_alloc'", -6, "host-out-of-memory"),
        ("Indexing.cu:1553: block: [0,0,0], thread: [1,0,0] Assertion `srcIndex` failed.", 1, "device-side-assert"),
        ("Error an illegal memory access was encountered at line 90", 1, "illegal-memory-access"),
        ("OSError: [Errno 28] No space left on device", 1, "disk-full"),
        ("", 120, "disk-full"),
        ("/usr/bin/python3: No module named chunkvisor_worker", 1, "worker-not-started"),
        ("", 127, "worker-not-started"),
        ("", -signal.SIGILL, "segmentation-fault"),
        ("CUDA out of memory", -signal.SIGTERM, "interrupted"),
        # What was printed before native code crashed was survived; only an abort is explained by
        # it.
        ("Killed\nCUDA out of memory", -signal.SIGKILL, "killed-from-outside"),
        ("std::bad_alloc\nCUDA out of memory\nGPU is lost\n", -signal.SIGBUS, "segmentation-fault"),
        # Behind the reason of an abort come the stacks of C++ and of Python.
        ("  what():  CUDA error: device-side assert triggered\n" + 200 * '  File "a.py", line 1 in '
            'b\n', -6,
         "device-side-assert"),
        # Success and unknown ends are not guessed at, nor is a text that the worker printed.
        ("CUDA out of memory", 0, ""),
        ("some text", 1, ""),
        ("ImportError: no flash_attn\nfalling back to sdpa", 1, ""),
        ("now at: GPU has fallen off the bus\n", 1, ""),
    ],
)  # fmt: skip
def test_log(tail: str, returncode: int, rule: str) -> None:
    """A worker that left no record is judged by the end of its log, then by its return code."""
    found = diagnose_log(tail, returncode)
    assert (found.rule.name if found else "") == rule


SAID: list[tuple[str | BaseException, tuple[str, str, str, str]]] = [
    # words, and the rules by them: where nothing is known, on a CPU, with free space, in a batch
    ("CUDA error: uncorrectable ECC error encountered", ("gpu-ecc-error", "", "gpu-ecc-error",
        "gpu-ecc-error")),
    ("ModuleNotFoundError: No module named 'x'", (*3 * ("worker-not-started",), "")),
    ("OSError: [Errno 28] No space left on device", ("disk-full", "disk-full", "", "disk-full")),
    ("CUDA out of memory", 4 * ("gpu-out-of-memory",)),
    (ValueError("GPU has fallen off the bus"), ("gpu-lost", "unknown-at-load", "gpu-lost", "gpu-lost")),
    (RuntimeError("No CUDA GPUs are available"), ("no-gpu-visible", "unknown-at-load",
        *2 * ("no-gpu-visible",))),
    (RuntimeError("No space left on device"), ("disk-full", "disk-full", "unknown-at-load", "disk-full")),
    # What the class or the number says is known.
    (cuda(214, "uncorrectable ECC error encountered"), 4 * ("gpu-ecc-error",)),
    (OSError(errno.ENOSPC, "No space left on device"), 4 * ("disk-full",)),
]  # fmt: skip


@pytest.mark.parametrize(("said", "rules"), SAID, ids=[repr(row[0])[:40] for row in SAID])
def test_what_is_known_outweighs_what_is_said(
    said: str | BaseException, rules: tuple[str, str, str, str]
) -> None:
    """Rules of GPUs need a GPU, those of a start the start, those of a full disk a full one."""
    nothing, on_cpu, has_space = Known(), Known(on_cpu=True), Known(has_space=True)
    places = ((START, nothing), (START, on_cpu), (START, has_space), (FORWARD, nothing))
    for rule, (phase, known) in zip(rules, places, strict=True):
        if isinstance(said, BaseException):
            found: Any = diagnose(fault_of(said, phase), known)
        else:
            found = diagnose_log(said, 1, phase, known)
        assert (found.rule.name if found else "") == rule


QUOTED = (
    "GPU has fallen off the bus",
    "uncorrectable ECC error encountered",
    "No CUDA GPUs are available",
    "CUDA-capable device(s) is/are busy or unavailable",
    "misaligned address",
    "Too many open files",
    "No space left on device",
    "can't start new thread",
    "Driver/library version mismatch",
    "undefined symbol: x",
    "pass trust_remote_code=True",
    "attn_implementation",
    "CUDA driver initialization failed",
)


@pytest.mark.parametrize("words", QUOTED)
def test_words_of_a_text_are_no_verdict(words: str) -> None:
    """An encoder that quotes a text behind words of its own has met the text, not what the text
    speaks of.
    """
    for kind in (RuntimeError, ValueError, OSError, stand_in("my.encoder.Refused", RuntimeError)):
        for phase in (TOKENIZE, FORWARD):
            assert named(phase, kind(f"cannot encode: {words}")) == "unknown-on-texts"


causes = st.builds(
    Cause,
    name=st.text()
    | st.sampled_from(
        sorted({name for rule in RULES for sign in rule.signs for name in sign.classes})
    ),
    bases=st.lists(st.text() | st.just("builtins.RuntimeError")).map(tuple),
    message=st.text(),
    error_code=st.none() | st.integers(),
    errno=st.none() | st.integers(),
    http_status=st.none() | st.integers(),
)


@given(
    st.builds(
        Fault,
        phase=st.sampled_from(Phase),
        chain=st.lists(causes, max_size=8).map(tuple),
        traceback=st.just(""),
    ),
    st.integers(-64, 255),
)
def test_every_fault_and_log_has_an_answer(fault: Fault, returncode: int) -> None:
    """Whatever the record says, there is a rule and a plain line for it; no log raises."""
    diagnosis = diagnose(fault)
    assert "\n" not in diagnosis.headline
    assert len(diagnosis.headline) <= LINE_CHARS + 1
    diagnose_log("".join(cause.message for cause in fault.chain), returncode)


@pytest.mark.parametrize(
    "unit", ["NVML_SUCCESS == ", "Path x", "INTERNAL ASSERT FAILED at ", "1 requested and ", "\n"]
)
def test_huge_message_is_judged_by_its_head(unit: str) -> None:
    """A message of megabytes, made to upset a pattern, has an answer all the same; its end does not
    count.
    """
    message = unit * (10_000_000 // len(unit))
    fault = Fault(
        FORWARD, (Cause("builtins.RuntimeError", (), f"{message}CUDA out of memory"),), ""
    )
    assert diagnose(fault).rule.name == "unknown-on-texts"
    assert diagnose_log(message, 1) is None


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_is_complete(rule: Any) -> None:
    """Each rule has a name of its own, says in sentences what happened and what to do, and how the
    run ends.
    """
    assert OF_RULE[rule.name] is rule
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+|unknown|aborted|interrupted", rule.name)
    assert rule.cause.endswith(".")
    assert rule.remedy.endswith(".")
    assert rule.signs or rule.log or rule.returncodes
    retried = rule.outcome in (
        Outcome.GPU_OOM,
        Outcome.DEVICE_FAULT,
        Outcome.HOST_OOM,
        Outcome.CRASHED,
    )
    unblamed = rule.outcome in (Outcome.INTERRUPTED, Outcome.BAD_OUTPUT)
    assert rule.exit_code in (69, 74, 75, 78) or (rule.exit_code is None and (retried or unblamed))
    assert not re.search(r"tried again|run goes on|bisected", rule.remedy), (
        "what the run does by itself is not a remedy"
    )


def test_the_page_on_gpus_names_rules_as_they_are() -> None:
    """docs/explanation/status-and-limits.md lists faults with the outcome of their rules."""
    page = (ROOT / "docs" / "explanation" / "status-and-limits.md").read_text("utf-8")
    lines = re.findall(r"^- .+: `([\w-]+)`, `(\w+)`, ", page, re.MULTILINE)
    assert len(lines) >= 14
    assert all(outcome == OF_RULE[name].outcome for name, outcome in lines)


@pytest.mark.parametrize(
    ("message", "larger"),
    [
        pytest.param(oom("226.00 MiB", "15.70 GiB", "210.38 MiB", "15.48 GiB"), True, id="alone"),
        pytest.param(
            oom("496.00 MiB", "14.75 GiB", "235.06 MiB", other="14.52 GiB", allocated="14.06 GiB"),
            True,
            id="alone in a container, where our own pid looks like another's",
        ),
        pytest.param(oom("55.57 GiB", "12.00 GiB", "9.02 GiB"), True, id="one allocation larger "
            "than the GPU"),
        pytest.param(oom("2.26 GiB", "6.00 GiB", "3.03 GiB", allocated="1.2 GiB"), False, id="in pieces"),
        pytest.param(oom("138.00 MiB", "15.90 GiB", "8.44 MiB", "15.32 GiB", "577.00 MiB"), False, id="neighbor"),
        pytest.param(oom("20.00 MiB", "79.25 GiB", "12.38 MiB", "3.10 GiB", "76.14 GiB"), False, id="large neighbor"),
        *(
            pytest.param(message, None, id=f"no figures: {message}")
            for message in ("", "CUDA error: out of memory", "CUDA out of memory. Tried to "
                "allocate 20.00 MiB.")
        ),
    ],
)  # fmt: skip
def test_larger_than_the_gpu_is_told_from_held_by_others(message: str, larger: bool | None) -> None:
    """Only what would not fit on a GPU of our own counts as larger than the GPU."""
    figures = read_oom(message)
    assert (figures and figures.larger_than_gpu) is larger
    if figures and figures.others_named:
        assert figures.others_bytes == figures.total_bytes - figures.free_bytes - figures.ours_bytes
