"""What the commands do, except the run: doctor, plan, tune, drill, encode, audit, verify and more.

They may import every package from `supervise` down.
"""
