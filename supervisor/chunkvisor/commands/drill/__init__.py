"""The fire drill: provokes faults on this machine, with a person's own model, and shows that the run recovers.

It works in a scratch folder of its own, beside the workdir of the config.
"""
