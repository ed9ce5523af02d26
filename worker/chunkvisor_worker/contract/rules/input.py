"""A text that the model cannot encode, or vectors that cannot be right, as the tokenizer and a CPU say it.

The GPU's word for the same is `device-side-assert`.
"""

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import NEW_PROCESS, ROW, Rule, bad_input, crashed, error, of_class, runtime_error

INPUT_RULES: tuple[Rule, ...] = (
    crashed(
        "texts-damaged",
        "The texts of the attempt are not those that were written for it.",
        "The chunk is tried again; if it returns, check the disk, and that nothing else writes in the workdir.",
        of_class("chunkvisor_worker.job.TextsDamagedError"),
    ),
    crashed(
        "bad-output",
        "The encoder gave vectors that cannot be right: too few, misshapen or of the wrong type.",
        "The chunk is tried again, then bisected; a plug-in has to return float32 of (texts, dimension).",
        of_class("chunkvisor_worker.plugin.BadOutputError"),
        outcome=Outcome.BAD_OUTPUT,
        hints=NEW_PROCESS | ROW,
    ),
    bad_input(
        # The tokenizer's message is misleading: the argument is a str, but UTF-8 cannot hold it.
        "text-not-unicode",
        "A text is not valid Unicode (it holds half of a surrogate pair), or is not a text at all.",
        "Correct the row in the source, mostly text cut in the middle of an emoji.",
        error(r"^(?:TextEncodeInput|TextInputSequence|PreTokenizedInputSequence) must be", "builtins.TypeError"),
        of_class("builtins.UnicodeEncodeError"),
    ),
    bad_input(
        "not-a-text",
        "A value is not a text (a number, bytes or nothing).",
        "Correct the row in the source.",
        error(r"^Unsupported input type: ", "builtins.ValueError"),
    ),
    bad_input(
        "token-out-of-range",
        "A token id or a position is more than the model has.",
        "If it is one row, correct it; if many, tokenizer and model do not belong together.",
        # Before the GPU, where it would be a device-side assert; and what a CPU says.
        of_class("chunkvisor_worker.tokenizer_check.TokenizerMismatchError"),
        error(r"^index out of range in self", "builtins.IndexError"),
    ),
    bad_input(
        "text-too-long",
        "A text has more tokens than the model has positions.",
        "Set model.max_length to what the model was built for.",
        runtime_error(
            r"^The size of tensor a \(\d+\) must match the size of tensor b \(\d+\)"
            r"|^The expanded size of the tensor \(\d+\) must match the existing size"
        ),
    ),
    crashed(
        # A Rust panic is a BaseException, not an Exception.
        "tokenizer-panic",
        "A library written in Rust, mostly the tokenizer, stopped at a bug of its own.",
        "The chunk is tried again, then bisected; update tokenizers.",
        of_class("pyo3_runtime.PanicException"),
        log=r"^thread '.{0,80}' panicked at ",
        hints=NEW_PROCESS | ROW,
    ),
)
