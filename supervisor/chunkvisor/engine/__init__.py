"""Starts, gates and ends worker processes, and finds the model's files for them.

What an ended attempt means, and what is done next, is decided elsewhere. May import devices and
down.
"""
