"""What each command does, apart from the run: doctor, drill, plan, encode, verify, retry, clean.

May import every room below: supervise and down.
"""
