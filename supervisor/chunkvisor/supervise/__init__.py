"""One run, from its start to its exit code; `chunkvisor.run` is the function of the API."""
