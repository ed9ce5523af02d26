"""Shared by the ingest tests: staging without a child process."""

from pathlib import Path
from typing import Any

import pytest

from chunkvisor.sources.resolve import IngestRequest
from chunkvisor.sources.stage import stage
from chunkvisor.sources.table import StagedTable
from ingest_files import Stage


@pytest.fixture
def stage_here(tmp_path: Path) -> Stage:
    """Stages a request in this process: `stage_here("a.csv", column="text")`, files relative to
    tmp_path.
    """
    count = 0

    def staged(*names: str, **wanted: Any) -> StagedTable:
        nonlocal count
        count += 1
        folder = tmp_path / f"table-{count}"
        folder.mkdir()
        stage(
            IngestRequest(sources=tuple(str(tmp_path / name) for name in names), **wanted), folder
        )
        return StagedTable.open(folder)

    return staged
