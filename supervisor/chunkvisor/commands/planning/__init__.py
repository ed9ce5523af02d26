"""What a run would do and need, found out without a worker or a GPU: for `chunkvisor plan`."""
