"""Folders as a power cut may leave them, rebuilt from a recorded run."""
