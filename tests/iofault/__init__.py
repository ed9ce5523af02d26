"""Runs in which one call of the operating system fails, one position after the other: see
README.md.
"""
