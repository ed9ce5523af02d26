"""What each command does, apart from the run: doctor, drill, plan, encode, verify, retry, clean.

May import every package below: supervise and down.
"""
