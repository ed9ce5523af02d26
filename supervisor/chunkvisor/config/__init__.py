"""The config: its YAML, the kinds of value in it, and the models they fill.

May import no other room: only errors, units, child and version, which stand next to the rooms.
"""
