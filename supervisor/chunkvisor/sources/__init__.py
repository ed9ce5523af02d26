"""Reads sources into a staged table of distinct texts, in a child process with a memory limit.

Only that child imports DuckDB, in `stage` and `sql`. May import store and down.
"""
