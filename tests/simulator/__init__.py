"""Whole lives of a run, played without a process, from random seeds."""
