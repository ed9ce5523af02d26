"""What a run shows: to the person at the terminal, to files, to other programs.

It never changes what a run does: an observer that fails is left out, and the run goes on. May import assemble and down.
"""
