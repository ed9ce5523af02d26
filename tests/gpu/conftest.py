"""What the integration tests on one GPU share: the GPU, and a place to run on it.

Nothing here imports torch: it is what runs on the GPU, in processes of its own. The page to it is
README.md.
"""

import os
from pathlib import Path

import pytest
from gpuplace import GpuPlace, TestGpu, find_gpu


@pytest.fixture(scope="session")
def gpu() -> TestGpu:
    """The GPU under test, with the environment in which processes see it, and its versions."""
    return find_gpu(os.environ)


@pytest.fixture(scope="session")
def kernels_that_compute(gpu: TestGpu) -> None:
    """Skips what wants it where kernels do nothing."""
    if not gpu.arithmetic:
        pytest.skip("kernels do nothing on a null GPU, and this is about what they do")


@pytest.fixture
def place(gpu: TestGpu, tmp_path: Path) -> GpuPlace:
    """A folder with a config for this GPU."""
    return GpuPlace(tmp_path, gpu)


@pytest.fixture(scope="session")
def plain(gpu: TestGpu, minilm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of gpuplace.TEXTS from a plain `SentenceTransformer.encode` on this GPU in float32, as a .npy."""
    return gpu.plain_encode(minilm_path, tmp_path_factory.mktemp("plain"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These cases start models again and again: they may take longer than other tests."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(1200))
