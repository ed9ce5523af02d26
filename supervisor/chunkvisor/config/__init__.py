"""The config: its YAML, the kinds of value in it, and the models they fill.

It may import no other package, only the modules that every package may use.
"""
