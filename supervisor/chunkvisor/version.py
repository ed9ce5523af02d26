"""The version of chunkvisor, apart from the package's own `__init__`, which no module of it imports."""

__version__ = "0.1.0"
