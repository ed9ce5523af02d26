"""Ingest: sources to a staged, de-duplicated, randomly readable table, in a child process under a memory limit.

It never imports DuckDB into the parent: only `stage` and what that imports do.
"""

from chunkvisor.ingest.child import stage_table
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.table import StagedTable

__all__ = ["IngestRequest", "StagedTable", "stage_table"]
