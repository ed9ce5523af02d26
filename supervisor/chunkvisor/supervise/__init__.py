"""One run, from its start to its exit code. It is not called `run`: that is the API's."""
