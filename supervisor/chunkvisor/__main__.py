"""`python -m chunkvisor`: the command, where its script is not on PATH."""

from chunkvisor.cli import main

main()
