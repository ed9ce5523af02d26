"""Ingest: sources to a staged, de-duplicated, randomly readable table, by DuckDB in a child process.

It never imports DuckDB into the parent: only `stage` and what that imports do.
"""

from chunkvisor.ingest.child import stage_table
from chunkvisor.ingest.request import IngestRequest
from chunkvisor.ingest.table import StagedTable

__all__ = ["IngestRequest", "StagedTable", "stage_table"]
