"""Whole lives of a run, played without a process: see docs/explanation/reliability.md, "Simulated lives"."""
