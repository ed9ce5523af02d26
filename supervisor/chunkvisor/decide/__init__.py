"""Pure decisions: evidence into a verdict, a verdict into a step. No clock, no files, no processes.

May import events and down.
"""
