"""What happened in a run and what it comes to: the journal, its events folded into numbers, the status.

May import assemble and down; knows nothing of terminals and pages.
"""
