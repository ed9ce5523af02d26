"""The config: its YAML, the kinds of value in it, the models they fill, and what workers get of them.

May import no other room: only errors, units, child and version, which stand next to the rooms.
"""
