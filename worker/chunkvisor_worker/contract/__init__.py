"""What parent and worker share: messages, files, exit codes, and the rules of faults.

It uses the standard library alone, so that both can import it under any interpreter.
"""
