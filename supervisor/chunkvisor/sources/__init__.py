"""Stages sources: a table of distinct texts, made in a child under a memory limit.

DuckDB is imported in the child alone: by `stage` and `sql`. May import store and down.
"""
