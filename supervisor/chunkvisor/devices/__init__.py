"""The devices that workers compute on: which there are, and how nvidia-smi says they are.

May import store and down.
"""
