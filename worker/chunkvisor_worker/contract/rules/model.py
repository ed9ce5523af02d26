"""The model's files, the packages it needs or the config's options are wrong: every worker would fail alike.

It never holds what the hub answers: that is in `hub`.
"""

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import CONFIG, LOAD, NULL_GPU_TORCH, Evidence, Rule, error, of_class, runtime_error

_SAFETENSORS = ("safetensors._safetensors_rust.SafetensorError", "safetensors_rust.SafetensorError")

MODEL_RULES: tuple[Rule, ...] = (
    Rule(
        # The worker's own checks.
        name="setting-impossible",
        outcome=Outcome.SETUP,
        cause="The model or the plug-in cannot do what the config asks for.",
        remedy="Correct the key of the config that the message names.",
        signs=(
            of_class("chunkvisor_worker.plugin.PluginError"),
            error(r"^(?:model|encode)\.\w+ is ", "builtins.ValueError"),
        ),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        # transformers builds a tokenizer of five special tokens where the files are missing, and says nothing.
        name="tokenizer-mismatch",
        outcome=Outcome.SETUP,
        cause="The tokenizer does not belong to the weights, or its files are missing: the vectors would look right "
        "and be wrong.",
        remedy="Download the model again, with all its tokenizer files.",
        signs=(of_class("chunkvisor_worker.tokenizer_check.TokenizerMismatchError"),),
        phases=LOAD,
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="model-folder-missing",
        outcome=Outcome.SETUP,
        cause="The model's folder does not exist here.",
        remedy="Correct model.name; a relative path is relative to the config file.",
        signs=(error(r"^Path .{1,4096} not found$", "builtins.FileNotFoundError"),),
        phases=LOAD,
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="custom-code-refused",
        outcome=Outcome.SETUP,
        cause="The model brings Python code of its own, which is not run without consent.",
        remedy="Read that code; if you trust it, set model.trust_remote_code to true.",
        signs=(error(r"contains custom code which must be executed|trust_remote_code=True", "builtins.ValueError"),),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="architecture-unknown",
        outcome=Outcome.SETUP,
        cause="The installed transformers does not know this model's architecture.",
        remedy="Update transformers, or choose a model that it knows.",
        signs=(error(r"does not recognize this architecture", "builtins.ValueError"),),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="weights-missing",
        outcome=Outcome.SETUP,
        cause="The model's folder has no weights, mostly because a download was cut short.",
        remedy="Download the model again.",
        signs=(error(r"^Error no file named ", "builtins.OSError"),),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="weights-damaged",
        outcome=Outcome.SETUP,
        cause="The weights file is cut short, empty, or the pointer of a Git LFS checkout.",
        remedy="Download the model again; in a Git checkout run `git lfs pull`.",
        signs=(
            error(r"Error while deserializing", *_SAFETENSORS),
            runtime_error(r"PytorchStreamReader failed"),
        ),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="model-config-damaged",
        outcome=Outcome.SETUP,
        cause="The model's config.json is not valid JSON.",
        remedy="Download the model again.",
        signs=(error(r"is not a valid JSON file", "builtins.OSError"),),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="weights-mismatch",
        outcome=Outcome.SETUP,
        cause="The shapes of the weights are not those that the model's config.json asks for; the log lists them.",
        remedy="Download config and weights again, from the same revision.",
        signs=(runtime_error(r"You set `ignore_mismatched_sizes` to `False`|^Error\(s\) in loading state_dict"),),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="prompt-unknown",
        outcome=Outcome.SETUP,
        cause="The model has no prompt of that name.",
        remedy="Correct encode.prompt_name; the message lists the names.",
        signs=(error(r"^Prompt name .{1,300} not found in the|is not a prompt of this model", "builtins.ValueError"),),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="attention-unsupported",
        outcome=Outcome.SETUP,
        cause="The attention implementation is not installed, or not possible with this model or GPU.",
        remedy="Set model.kwargs.attn_implementation to sdpa or eager, or install the package that the message names.",
        signs=(
            error(r"^FlashAttention\d? has been toggled on", "builtins.ImportError"),
            error(r"attn_implementation|FlashAttention only supports", "builtins.ValueError", "builtins.RuntimeError"),
        ),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        # Not raised at import but at the first use of the allocator.
        name="allocator-config",
        outcome=Outcome.SETUP,
        cause="PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF has an option that torch does not take.",
        remedy="Correct it under `env:` or in the shell; commas part the options, and Booleans are True and False.",
        signs=(
            error(
                r"Unrecognized key .{1,300} in .{0,40}allocator config|CachingAllocator option "
                r"|Unknown allocator backend|^Expected 'True' or 'False' at index|is invalid, set it in [(\[]0\.0, 1\.0"
                r"|^For roundups, the divisions has to be|c10/core/AllocatorConfig\.h",
                *("builtins.ValueError", "builtins.RuntimeError"),
            ),
        ),
        exit_code=CONFIG,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="model-option-unknown",
        outcome=Outcome.SETUP,
        cause="The model's constructor does not take one of the options.",
        remedy="Correct model.kwargs; the message names the option.",
        signs=(error(r"got an unexpected keyword argument", "builtins.TypeError"),),
        phases=LOAD,
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="library-missing",
        outcome=Outcome.SETUP,
        cause="A package is installed, but a shared library that it needs is missing or of another version.",
        remedy="Install builds that belong together, in an environment of their own; the message names the library.",
        signs=(
            error(
                r"cannot open shared object file|undefined symbol|version `.{1,80}' not found",
                *("builtins.ImportError", "builtins.OSError"),
            ),
        ),
        exit_code=CONFIG,
        evidence=Evidence.REPORTED,
    ),
    Rule(
        name="permission-denied",
        outcome=Outcome.SETUP,
        cause="The worker may not read or write a file that it needs.",
        remedy="Give the user the right to the path in the message; all workers run as the user of the run.",
        signs=(of_class("builtins.PermissionError"),),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
)
