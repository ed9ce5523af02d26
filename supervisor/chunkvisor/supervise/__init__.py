"""One run: from the first word to the exit code.

May import observe and down. It is not called `run`: that is the function `chunkvisor.run`.
"""
