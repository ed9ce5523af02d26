"""Plays runs without a process, a file or a pause: the real loop on a virtual clock.

Real are `Loop`, `Scheduler`, the policy, the judge, the ledger and the store. What they touch is
replaced: `machine.py` has the engine, workers and signals, `disk.py` the files under the ledger.

- A history (`histories.py`) is a table: what happens, and what the loop is to do about it.
  `play.py` reads its lines.
- A life (`life.py`) is a whole job, drawn from a seed: `world.py` draws texts, devices and
  troubles, `verdicts.py` has what each kind of failure leaves for the judge, and `watchdog.py`
  raises Broken as soon as a promise does not hold. The parent may die between any two instructions.
- `planted.py` has bugs that a history or a life must find, and says how to plant another one.

`python -m tests.simulator --seconds 60` plays fresh lives; a failure prints the command that
replays it, with all that happened.
"""
