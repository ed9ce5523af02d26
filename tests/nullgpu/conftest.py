"""Null GPUs for the tests of this folder, which are collected in the null GPU's own environments
only.
"""

import hashlib
import importlib.metadata
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from environment import MARKER

IN_ENVIRONMENT = (Path(sys.prefix) / MARKER).exists()
collect_ignore_glob = [] if IN_ENVIRONMENT else ["test_*.py"]

if IN_ENVIRONMENT:
    import tiny
    from build import Built, build, cache_folder

    from nullgpu import GIB, LIMIT_S, GpuWorkplace, NullGpu


def pytest_configure(config: pytest.Config) -> None:
    """Name this folder's marker."""
    config.addinivalue_line(
        "markers", "newer: runs under the newer torch as well, whose allocator no longer asserts"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test here the time that a machine may take on which others compute."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(LIMIT_S + 100))


@pytest.fixture(scope="session")
def built() -> "Built":
    """The null GPU, built for this torch."""
    return build()


@pytest.fixture
def make_gpu(built: "Built", tmp_path: Path) -> Callable[..., "NullGpu"]:
    """Makes machines: `make_gpu([8 * GIB, 16 * GIB], trace=1)`; further names are keys of the
    control file.
    """
    count = 0

    def make(gpus: "list[int] | None" = None, **settings: Any) -> "NullGpu":
        nonlocal count
        count += 1
        gpu = NullGpu(tmp_path / f"gpu{count}", built, gpus or [8 * GIB])
        gpu.set(**settings)
        return gpu

    return make


@pytest.fixture
def gpu(make_gpu: Callable[..., "NullGpu"]) -> "NullGpu":
    """A machine with one null GPU of 8 GiB, which traces its calls."""
    return make_gpu(trace=1)


@pytest.fixture(scope="session")
def bert() -> Path:
    """Folder of a tiny random BERT, made once for all sessions: to make it takes longer than most
    tests.
    """
    versions = [
        importlib.metadata.version(name)
        for name in ("torch", "transformers", "sentence-transformers")
    ]
    digest = hashlib.sha256(
        "\0".join([Path(tiny.__file__).read_text(), *versions]).encode()
    ).hexdigest()[:16]
    folder = cache_folder() / "models" / digest
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
        tiny.make_bert(scratch)
        try:
            scratch.rename(folder)
        except OSError:
            shutil.rmtree(scratch)  # another session was faster
    return folder / "model"


@pytest.fixture
def gpu_workplace(tmp_path: Path, gpu: "NullGpu", bert: Path) -> "GpuWorkplace":
    """A folder in which a config and a source can be made, and run on `gpu`."""
    return GpuWorkplace(tmp_path, gpu, bert)
