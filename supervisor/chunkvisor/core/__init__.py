"""The core of a run: who works on which texts, what a failure means, and the loop that does it.

`policy` and `scheduler` decide, and touch nothing. `loop` does what they decide: `store` stores
vectors, `attempt` watches a worker, `output` knows an output's texts, `reports` tells people.
"""
