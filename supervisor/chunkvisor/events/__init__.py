"""What happens in a run, as typed events; the journal that keeps them, and the state that they come to.

May import config and down, so that every room that does something can tell of it. Knows no folder and no screen.
"""
