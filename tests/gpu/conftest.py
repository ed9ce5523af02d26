"""What the integration tests on one GPU share: the GPU, a place to run on it, and the table at the end.

Nothing here imports torch: it is what runs on the GPU, in processes of its own. The page to it is
README.md.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gpuplace import GpuPlace, TestGpu, find_gpu
from gputable import Row, table

import chunkvisor

_ROWS = pytest.StashKey[list[Row]]()
_GPU = pytest.StashKey[TestGpu]()


@pytest.fixture(scope="session")
def gpu(pytestconfig: pytest.Config) -> TestGpu:
    """The GPU under test, with the environment in which processes see it, and its versions."""
    found = find_gpu(os.environ)
    pytestconfig.stash[_GPU] = found
    return found


@pytest.fixture(scope="session")
def kernels_that_compute(gpu: TestGpu) -> None:
    """Skips what wants it where kernels do nothing."""
    if not gpu.arithmetic:
        pytest.skip("kernels do nothing on a null GPU, and this is about what they do")


@pytest.fixture
def place(gpu: TestGpu, tmp_path: Path) -> GpuPlace:
    """A folder with a config for this GPU."""
    return GpuPlace(tmp_path, gpu)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Takes what the table is to say of the case, beside whether it passed."""
    return lambda text: record_property("figure", text)


@pytest.fixture(scope="session")
def plain(gpu: TestGpu, minilm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of gpuplace.TEXTS from a plain `SentenceTransformer.encode` on this GPU in float32, as a .npy."""
    return gpu.plain_encode(minilm_path, tmp_path_factory.mktemp("plain"))


def pytest_configure(config: pytest.Config) -> None:
    """Room for the table."""
    config.stash[_ROWS] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These cases start models again and again: they may take longer than other tests."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(1200))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Keep the result of each case."""
    report = yield
    if report.when == "call" or report.outcome != "passed":
        figures = [str(value) for name, value in report.user_properties if name == "figure"]
        item.config.stash[_ROWS].append(Row(item.name, report.outcome, "; ".join(figures) or why(report)))
    return report


def why(report: pytest.TestReport) -> str:
    """Why a case was skipped or failed, in a line."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else str(report.longrepr)).strip().partition("\n")[0][:200]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, to be pasted into an issue."""
    if _GPU in config.stash:
        terminalreporter.section("to be pasted into an issue")
        for line in table(config.stash[_GPU], config.stash[_ROWS], chunkvisor.__version__):
            terminalreporter.write_line(line)
