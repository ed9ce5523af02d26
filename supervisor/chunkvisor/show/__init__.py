"""What a run shows: status, live view, lines, JSON, metrics, notices, and the report.

Nothing here decides anything: a run does the same work whether or not someone watches it.
"""
