"""From staged texts to final files.

Takes vectors over, joins chunks, publishes, and keeps the record of it.

May import sources and down.
"""
