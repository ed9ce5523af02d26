"""The wire between parent and worker: file names, messages, exit codes and the taxonomy of faults.

Standard library only, so that both sides can import it under any interpreter.
"""
