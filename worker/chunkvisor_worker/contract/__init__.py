"""The wire between supervisor and worker: file names, messages, exit codes and the taxonomy of faults.

It never imports anything but the standard library, so that both sides can import it under any interpreter.
"""
