"""The fire drill: provokes faults on this machine, with a person's own model, and shows that the run recovers.

It never touches the workdir of a real run: it works in a scratch folder of its own.
"""
