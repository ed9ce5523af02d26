"""The model hub cannot be reached, asks us to wait, or refuses.

It never trusts the outermost exception: transformers turns all of these into one OSError, "We couldn't connect to ...",
and the truth is further down the chain.
"""

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import CONFIG, LOAD, PASSING, Evidence, Rule, Sign, error, of_class

_TRANSPORT = (
    "httpx.TransportError",
    "httpx2.TransportError",
    "requests.exceptions.ConnectionError",
    "requests.exceptions.Timeout",
)

HUB_RULES: tuple[Rule, ...] = (
    Rule(
        name="model-not-cached",
        outcome=Outcome.SETUP,
        cause="The model is not, or not completely, in the local cache, and the hub may not be asked (offline mode).",
        remedy="Run once with the network allowed, or copy the model here and give model.name its folder.",
        signs=(
            of_class("huggingface_hub.errors.OfflineModeIsEnabled"),
            error(r"outgoing traffic has been disabled", "huggingface_hub.errors.LocalEntryNotFoundError"),
            of_class("huggingface_hub.errors.IncompleteSnapshotError"),
        ),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="hub-busy",
        outcome=Outcome.HUB,
        cause="The server of the model hub is overloaded or down, or limits our rate.",
        remedy="The run waits and asks again; set HF_TOKEN for a higher limit, or give model.name a local folder.",
        signs=(
            Sign(http_statuses=(408, 429, 500, 502, 503, 504)),
            error(r"\b429 Too Many Requests|Server error '5\d\d", "huggingface_hub.errors.HfHubHTTPError"),
        ),
        exit_code=PASSING,
        evidence=Evidence.RUN,
    ),
    Rule(
        # A subclass of RepositoryNotFoundError.
        name="model-gated",
        outcome=Outcome.SETUP,
        cause="The model is gated: its owner wants you to accept the licence first.",
        remedy="Accept it on the model's page, and set HF_TOKEN to a token of that account.",
        signs=(of_class("huggingface_hub.errors.GatedRepoError"),),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="model-disabled",
        outcome=Outcome.SETUP,
        cause="The hub has disabled this model.",
        remedy="Choose another model.",
        signs=(of_class("huggingface_hub.errors.DisabledRepoError"),),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="model-not-found",
        outcome=Outcome.SETUP,
        cause="The hub has no such model, or hides it: it is private, or the token is wrong or expired.",
        remedy="Check model.name and HF_TOKEN.",
        signs=(of_class("huggingface_hub.errors.RepositoryNotFoundError"),),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="revision-not-found",
        outcome=Outcome.SETUP,
        cause="The model has no such revision, or lacks a file in it.",
        remedy="Check model.revision against the model's page.",
        signs=(
            of_class("huggingface_hub.errors.RevisionNotFoundError", "huggingface_hub.errors.RemoteEntryNotFoundError"),
        ),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="hub-access-denied",
        outcome=Outcome.SETUP,
        cause="The hub refused access.",
        remedy="Check that HF_TOKEN is valid and may read this model.",
        signs=(
            Sign(http_statuses=(401, 403), classes=("huggingface_hub.errors.HfHubHTTPError",)),
            of_class("huggingface_hub.errors.LocalTokenNotFoundError"),
        ),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="model-name-invalid",
        outcome=Outcome.SETUP,
        cause="model.name is neither a folder here nor a possible name on the hub.",
        remedy="Write it as owner/name, or as the path of a folder.",
        signs=(
            of_class("huggingface_hub.errors.HFValidationError"),
            error(r"^Repo id must ", "builtins.OSError"),
        ),
        exit_code=CONFIG,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="hub-unreachable",
        outcome=Outcome.HUB,
        cause="The model hub cannot be reached.",
        remedy="Check the network, the proxy and HF_ENDPOINT, or give model.name a local folder; the run waits "
        "and asks again.",
        signs=(
            Sign(classes=_TRANSPORT),
            error(r"An error happened while trying to locate", "huggingface_hub.errors.LocalEntryNotFoundError"),
        ),
        exit_code=PASSING,
        evidence=Evidence.RUN,
    ),
    Rule(
        # Not in the later phases: there a broken pipe is a ConnectionError too.
        name="network-failed",
        outcome=Outcome.HUB,
        cause="A network connection failed while the model was being loaded.",
        remedy="Check the network and the proxy. The run waits and asks again.",
        signs=(
            Sign(classes=("builtins.ConnectionError", "builtins.TimeoutError", "socket.gaierror")),
            error(r"We couldn't connect to '", "builtins.OSError"),
        ),
        phases=LOAD,
        exit_code=PASSING,
        evidence=Evidence.RUN,
    ),
)
