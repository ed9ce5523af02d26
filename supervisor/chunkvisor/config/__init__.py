"""The config: its YAML, the kinds of value in it, the models they fill, and what workers get of them.

May import the modules beside the rooms only: errors, units, child, version.
"""
