"""The folder of a run: every path, every record and lock in it, and what of the work it says is done.

May import judge and down.
"""
