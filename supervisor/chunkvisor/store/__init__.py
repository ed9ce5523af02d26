"""The workdir of a run: its paths, its lock, its records, and what they say is done.

`layout` has the paths; `ledger` says which texts of an output are done, and `chunkfiles` has its
files; `attempt` reads the folder of an attempt. May import `judge` and what is below it.
"""
