"""The devices of a machine.

GPUs as nvidia-smi sees them, their fitness for work, memory, processes.

May import store and down.
"""
