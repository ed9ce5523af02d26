"""Whole lives of a run, played without a process: see docs/reliability.md, "Simulated lives"."""
