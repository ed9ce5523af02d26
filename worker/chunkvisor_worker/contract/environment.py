"""Environment variables by which the supervisor marks and ties its workers."""

RUN_ID = "CHUNKVISOR_RUN_ID"
"""Marks every process that a run starts, so that a later run can tell them from anybody else's."""

PARENT_PID = "CHUNKVISOR_PARENT_PID"
"""Set for a supervised worker, which lives and waits by its standard input; a worker run by hand has it not."""

LINEAR = "CHUNKVISOR_LINEAR"
"""Which kernel computes the linear layers of a model on the CPU: `torch` or `onednn`; not set: the faster one."""

BATCHES_AT_ONCE = "CHUNKVISOR_BATCHES_AT_ONCE"
"""How many batches a worker on the CPU computes at a time, at most; not set: as many as it has threads."""
