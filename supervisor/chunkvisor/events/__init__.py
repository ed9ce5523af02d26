"""The events of a run, the journal that keeps them, and the state that they add up to.

May import config and down, so that every package that does something can report it. Knows no
folder and no screen.
"""
