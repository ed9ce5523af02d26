"""Sources to a staged, de-duplicated, randomly readable table, in a child process under a memory limit.

DuckDB is imported in the child alone: by `stage` and `sql`. May import store and down.
"""
