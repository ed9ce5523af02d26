"""The folder of a run.

Every path, every record and lock in it, and what of the work it says is done.

May import judge and down.
"""
