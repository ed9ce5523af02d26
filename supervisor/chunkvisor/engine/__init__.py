"""Engines: ways to start, gate and end worker processes.

An engine never judges an attempt and never decides what is next; it gives the loop a handle on a process.
May import devices and down.
"""
