"""The model hub refuses or cannot be reached; the model's files, its packages or the config's options are wrong.

Of a hub's fault the outermost exception says little: transformers turns all of them into one OSError, "We couldn't
connect to ...", and the truth is further down the chain.
"""

from chunkvisor_worker.contract.rule import (
    LOAD,
    SAFETENSORS,
    Evidence,
    Rule,
    Sign,
    error,
    hub,
    misconfigured,
    of_class,
    runtime_error,
)

_TRANSPORT = (
    "httpx.TransportError",
    "httpx2.TransportError",
    "requests.exceptions.ConnectionError",
    "requests.exceptions.Timeout",
)

HUB_RULES: tuple[Rule, ...] = (
    misconfigured(
        "model-not-cached",
        "The model is not, or not completely, in the local cache, and the hub may not be asked (offline mode).",
        "Run once with the network allowed, or copy the model here and give model.name its folder.",
        of_class("huggingface_hub.errors.OfflineModeIsEnabled"),
        error(r"outgoing traffic has been disabled", "huggingface_hub.errors.LocalEntryNotFoundError"),
        of_class("huggingface_hub.errors.IncompleteSnapshotError"),
    ),
    hub(
        "hub-busy",
        "The server of the model hub is overloaded or down, or limits our rate.",
        "The run waits and asks again; set HF_TOKEN for a higher limit, or give model.name a local folder.",
        Sign(http_statuses=(408, 429, 500, 502, 503, 504)),
        error(r"\b429 Too Many Requests|Server error '5\d\d", "huggingface_hub.errors.HfHubHTTPError"),
        evidence=Evidence.STUB_HUB,
    ),
    misconfigured(
        # A subclass of RepositoryNotFoundError.
        "model-gated",
        "The model is gated: its owner wants you to accept the licence first.",
        "Accept it on the model's page, and set HF_TOKEN to a token of that account.",
        of_class("huggingface_hub.errors.GatedRepoError"),
        evidence=Evidence.STUB_HUB,
    ),
    misconfigured(
        "model-disabled",
        "The hub has disabled this model.",
        "Choose another model.",
        of_class("huggingface_hub.errors.DisabledRepoError"),
        evidence=Evidence.STUB_HUB,
    ),
    misconfigured(
        "model-not-found",
        "The hub has no such model, or hides it: it is private, or the token is wrong or expired.",
        "Check model.name and HF_TOKEN.",
        of_class("huggingface_hub.errors.RepositoryNotFoundError"),
        evidence=Evidence.STUB_HUB,
    ),
    misconfigured(
        "revision-not-found",
        "The model has no such revision, or lacks a file in it.",
        "Check model.revision against the model's page.",
        of_class("huggingface_hub.errors.RevisionNotFoundError", "huggingface_hub.errors.RemoteEntryNotFoundError"),
        evidence=Evidence.STUB_HUB,
    ),
    misconfigured(
        "hub-access-denied",
        "The hub refused access.",
        "Check that HF_TOKEN is valid and may read this model.",
        Sign(http_statuses=(401, 403), classes=("huggingface_hub.errors.HfHubHTTPError",)),
        of_class("huggingface_hub.errors.LocalTokenNotFoundError"),
        evidence=Evidence.STUB_HUB,
    ),
    misconfigured(
        "model-name-invalid",
        "model.name is neither a folder here nor a possible name on the hub.",
        "Write it as owner/name, or as the path of a folder.",
        of_class("huggingface_hub.errors.HFValidationError"),
        error(r"^Repo id must ", "builtins.OSError"),
    ),
    hub(
        "hub-unreachable",
        "The model hub cannot be reached.",
        "Check the network, the proxy and HF_ENDPOINT, or give model.name a local folder; the run waits "
        "and asks again.",
        of_class(*_TRANSPORT),
        error(r"An error happened while trying to locate", "huggingface_hub.errors.LocalEntryNotFoundError"),
    ),
    hub(
        # Not in the later phases: there a broken pipe is a ConnectionError too.
        "network-failed",
        "A network connection failed while the model was being loaded.",
        "Check the network and the proxy. The run waits and asks again.",
        of_class("builtins.ConnectionError", "builtins.TimeoutError", "socket.gaierror"),
        error(r"We couldn't connect to '", "builtins.OSError"),
        phases=LOAD,
    ),
)

MODEL_RULES: tuple[Rule, ...] = (
    misconfigured(
        # The worker's own checks.
        "setting-impossible",
        "The model or the plug-in cannot do what the config asks for.",
        "Correct the key of the config that the message names.",
        of_class("chunkvisor_worker.plugin.PluginError"),
        error(r"^(?:model|encode)\.\w+ is ", "builtins.ValueError"),
    ),
    misconfigured(
        "wrong-model",
        "The model that is loaded is not the one that its files describe.",
        "The message says what to set or to install. docs/reference/right-vectors.md has all that is checked.",
        of_class("chunkvisor_worker.loaded.WrongModelError"),
    ),
    misconfigured(
        # transformers builds a tokenizer of five special tokens where the files are missing, and says nothing.
        "tokenizer-mismatch",
        "The tokenizer does not belong to the weights, or its files are missing: the vectors would look right "
        "and be wrong.",
        "Download the model again, with all its tokenizer files.",
        of_class("chunkvisor_worker.tokenizer_check.TokenizerMismatchError"),
        phases=LOAD,
    ),
    misconfigured(
        "model-folder-missing",
        "The model's folder does not exist here.",
        "Correct model.name; a relative path is relative to the config file.",
        error(r"^Path .{1,4096} not found$", "builtins.FileNotFoundError"),
        phases=LOAD,
    ),
    misconfigured(
        "custom-code-refused",
        "The model brings Python code of its own, which is not run without consent.",
        "Read that code; if you trust it, set model.trust_remote_code to true.",
        error(r"contains custom code which must be executed|trust_remote_code=True", "builtins.ValueError"),
    ),
    misconfigured(
        "architecture-unknown",
        "The installed transformers does not know this model's architecture.",
        "Update transformers, or choose a model that it knows.",
        error(r"does not recognize this architecture", "builtins.ValueError"),
    ),
    misconfigured(
        "weights-missing",
        "The model's folder has no weights, mostly because a download was cut short.",
        "Download the model again.",
        error(r"^Error no file named ", "builtins.OSError"),
    ),
    misconfigured(
        "weights-damaged",
        "The weights file is cut short, empty, or the pointer of a Git LFS checkout.",
        "Download the model again; in a Git checkout run `git lfs pull`.",
        error(r"Error while deserializing", *SAFETENSORS),
        runtime_error(r"PytorchStreamReader failed"),
    ),
    misconfigured(
        "model-config-damaged",
        "The model's config.json is not valid JSON.",
        "Download the model again.",
        error(r"is not a valid JSON file", "builtins.OSError"),
    ),
    misconfigured(
        "weights-mismatch",
        "The shapes of the weights are not those that the model's config.json asks for; the log lists them.",
        "Download config and weights again, from the same revision.",
        runtime_error(r"You set `ignore_mismatched_sizes` to `False`|^Error\(s\) in loading state_dict"),
    ),
    misconfigured(
        "prompt-unknown",
        "The model has no prompt of that name.",
        "Correct encode.prompt_name; the message lists the names.",
        error(r"^Prompt name .{1,300} not found in the|is not a prompt of this model", "builtins.ValueError"),
    ),
    misconfigured(
        "attention-unsupported",
        "The attention implementation is not installed, or not possible with this model or GPU.",
        "Set model.kwargs.attn_implementation to sdpa or eager, or install the package that the message names.",
        error(r"^FlashAttention\d? has been toggled on", "builtins.ImportError"),
        error(r"attn_implementation|FlashAttention only supports", "builtins.ValueError", "builtins.RuntimeError"),
    ),
    misconfigured(
        # Not raised at import but at the first use of the allocator.
        "allocator-config",
        "PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF has an option that torch does not take.",
        "Correct it under `env:` or in the shell; commas part the options, and Booleans are True and False.",
        error(
            r"Unrecognized key .{1,300} in .{0,40}allocator config|CachingAllocator option "
            r"|Unknown allocator backend|^Expected 'True' or 'False' at index|is invalid, set it in [(\[]0\.0, 1\.0"
            r"|^For roundups, the divisions has to be|c10/core/AllocatorConfig\.h",
            *("builtins.ValueError", "builtins.RuntimeError"),
        ),
        evidence=Evidence.NULL_GPU,
    ),
    misconfigured(
        "model-option-unknown",
        "The model's constructor does not take one of the options.",
        "Correct model.kwargs; the message names the option.",
        error(r"got an unexpected keyword argument", "builtins.TypeError"),
        phases=LOAD,
    ),
    misconfigured(
        "library-missing",
        "A package is installed, but a shared library that it needs is missing or of another version.",
        "Install builds that belong together, in an environment of their own; the message names the library.",
        error(
            r"cannot open shared object file|undefined symbol|version `.{1,80}' not found",
            *("builtins.ImportError", "builtins.OSError"),
        ),
        evidence=Evidence.REPORTED,
    ),
    misconfigured(
        "permission-denied",
        "The worker may not read or write a file that it needs.",
        "Give the user the right to the path in the message; all workers run as the user of the run.",
        of_class("builtins.PermissionError"),
    ),
)
