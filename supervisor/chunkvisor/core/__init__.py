"""The core of a run: who works on which texts, what a failure means, and the loop that does it.

`policy` and `scheduler` are pure and decide; `loop` and what it uses do what they say.
"""
