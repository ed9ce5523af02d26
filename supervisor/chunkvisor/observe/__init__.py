"""What a run shows: to the person at the terminal, to files, to other programs.

An observer that fails is left out, and the run goes on. May import assemble and down.
"""
