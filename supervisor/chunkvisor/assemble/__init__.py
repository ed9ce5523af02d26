"""Joins committed chunks into final files, checks what was written, and keeps the record of it.

May import ingest and down.
"""
