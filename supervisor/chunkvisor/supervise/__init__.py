"""One run: opens the outputs, starts and judges workers, and obeys what `decide` says until it ends.

May import observe and down. It is not called `run`: that is the function `chunkvisor.run`.
"""
