"""Faults that no other rule knows, by what the worker was doing.

It never fails to match: the last rule takes everything.
"""

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import CONFIG, LOAD, ON_TEXTS, Evidence, Rule, Sign, of_class

UNKNOWN_RULES: tuple[Rule, ...] = (
    Rule(
        name="import-failed",
        outcome=Outcome.SETUP,
        cause="A package that the model or the plug-in needs is missing or broken.",
        remedy="Install it into the workers' environment; the message names it.",
        signs=(of_class("builtins.ImportError", "builtins.SyntaxError"),),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="unknown-at-load",
        outcome=Outcome.SETUP,
        cause="Loading the model failed, before any text was touched; every worker would fail alike.",
        remedy="Read the traceback in the attempt's fault.json; `chunkvisor doctor CONFIG` repeats it without a run.",
        signs=(Sign(),),
        phases=LOAD,
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="unknown-on-texts",
        outcome=Outcome.CRASHED,
        cause="The encoder failed while it handled texts, with an error that no rule knows.",
        remedy="The chunk is tried again, then bisected; read the traceback in the attempt's fault.json.",
        signs=(Sign(),),
        phases=ON_TEXTS,
        fresh_process_helps=True,
        row_can_cause=True,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="unknown",
        outcome=Outcome.CRASHED,
        cause="The worker failed with an error that no rule knows.",
        remedy="The chunk is tried again; read the traceback in the attempt's fault.json.",
        signs=(Sign(),),
        fresh_process_helps=True,
        evidence=Evidence.RUN,
    ),
)
