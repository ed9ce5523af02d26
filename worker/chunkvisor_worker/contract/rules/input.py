"""A text that the model cannot encode, or vectors that cannot be right.

It never holds the GPU's word for the same (`device-side-assert`): these are what the tokenizer and a CPU say.
"""

import re

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import CONFIG, ON_TEXTS, Evidence, Rule, error, of_class, runtime_error

INPUT_RULES: tuple[Rule, ...] = (
    Rule(
        name="texts-damaged",
        outcome=Outcome.CRASHED,
        cause="The texts of the attempt are not those that were written for it.",
        remedy="The chunk is tried again; if it returns, check the disk, and that nothing else writes in the workdir.",
        signs=(of_class("chunkvisor_worker.texts.TextsDamagedError"),),
        fresh_process_helps=True,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="bad-output",
        outcome=Outcome.BAD_OUTPUT,
        cause="The encoder gave vectors that cannot be right: too few, misshapen or of the wrong type.",
        remedy="The chunk is tried again, then bisected; a plug-in has to return float32 of (texts, dimension).",
        signs=(of_class("chunkvisor_worker.plugin.BadOutputError"),),
        fresh_process_helps=True,
        row_can_cause=True,
        evidence=Evidence.RUN,
    ),
    Rule(
        # The tokenizer's message is misleading: the argument is a str, but UTF-8 cannot hold it.
        name="text-not-unicode",
        outcome=Outcome.BAD_INPUT,
        cause="A text is not valid Unicode (it holds half of a surrogate pair), or is not a text at all.",
        remedy="Mend the row in the source, mostly text cut in the middle of an emoji.",
        signs=(
            error(r"^(?:TextEncodeInput|TextInputSequence|PreTokenizedInputSequence) must be", "builtins.TypeError"),
            of_class("builtins.UnicodeEncodeError"),
        ),
        phases=ON_TEXTS,
        exit_code=CONFIG,
        row_can_cause=True,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="not-a-text",
        outcome=Outcome.BAD_INPUT,
        cause="A value is not a text (a number, bytes or nothing).",
        remedy="Mend the row in the source.",
        signs=(error(r"^Unsupported input type: ", "builtins.ValueError"),),
        phases=ON_TEXTS,
        exit_code=CONFIG,
        row_can_cause=True,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="token-out-of-range",
        outcome=Outcome.BAD_INPUT,
        cause="A token id or a position is more than the model has.",
        remedy="If it is one row, mend it; if many, tokenizer and model do not belong together.",
        signs=(
            # Before the GPU, where it would be a device-side assert; and what a CPU says.
            of_class("chunkvisor_worker.tokenizer_check.TokenizerMismatchError"),
            error(r"^index out of range in self", "builtins.IndexError"),
        ),
        phases=ON_TEXTS,
        exit_code=CONFIG,
        row_can_cause=True,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="text-too-long",
        outcome=Outcome.BAD_INPUT,
        cause="A text has more tokens than the model has positions.",
        remedy="Set model.max_length to what the model was built for.",
        signs=(
            runtime_error(
                r"^The size of tensor a \(\d+\) must match the size of tensor b \(\d+\)"
                r"|^The expanded size of the tensor \(\d+\) must match the existing size"
            ),
        ),
        phases=ON_TEXTS,
        exit_code=CONFIG,
        row_can_cause=True,
        evidence=Evidence.RUN,
    ),
    Rule(
        # A Rust panic is a BaseException, not an Exception.
        name="tokenizer-panic",
        outcome=Outcome.CRASHED,
        cause="A library written in Rust, mostly the tokenizer, stopped at a bug of its own.",
        remedy="The chunk is tried again, then bisected; update tokenizers.",
        signs=(of_class("pyo3_runtime.PanicException"),),
        log=re.compile(r"^thread '.{0,80}' panicked at ", re.MULTILINE),
        fresh_process_helps=True,
        row_can_cause=True,
        evidence=Evidence.RUN,
    ),
)
