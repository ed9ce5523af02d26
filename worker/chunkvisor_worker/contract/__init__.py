"""The wire between parent and worker.

The standard library only, so that both can import it under any interpreter.
"""
