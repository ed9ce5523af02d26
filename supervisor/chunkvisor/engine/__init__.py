"""Engines: ways to start, gate and end worker processes.

An engine gives the loop a handle on a process; attempts are judged, and what is next decided,
elsewhere. May import devices and down.
"""
