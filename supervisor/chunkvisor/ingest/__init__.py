"""Ingest: sources to a staged, de-duplicated, randomly readable table, in a child process under a memory limit.

It never imports DuckDB into the parent: only `stage` and what that imports do. May import store and down.
"""
