"""No file and no line that leaves a process has a secret in it."""

import sys
from typing import Any

import pytest

from chunkvisor.cli import main
from chunkvisor_worker.contract.secrets import hide
from harness import Ended, Workplace, contents, local_engine_only

pytestmark = local_engine_only

SECRETS = {
    "by key": "S3CR3T-bearer-of-the-headers",
    "by form": "S3CR3T-of-the-address",
    "by key in camel case": "S3CR3T-key-of-the-service",
    "of env": "S3CR3T 'quoted' \\ of the config's env",
    "of the environment": "S3CR3T-of-the-hub-token",
    "of the notices": "S3CR3T-of-the-notices",
}
KWARGS = {
    "headers": {"Authorization": f"Bearer {SECRETS['by key']}"},
    "base_url": f"https://user:{SECRETS['by form']}@example.org/v1",
    "apiKey": SECRETS["by key in camel case"],
}
ENVIRONMENT = {"HF_TOKEN": SECRETS["of the environment"]}


def leaks(place: Workplace, *ended: Ended) -> list[str]:
    """Where "S3CR3T" stands, but for the config."""
    files = contents(place.folder).items()
    found = [name for name, data in files if b"S3CR3T" in data and name != place.config_path.name]
    return found + [each.stdout + each.stderr for each in ended if "S3CR3T" in str(each)]


def prepare(place: Workplace, texts: list[str], kwargs: dict[str, Any], **changes: Any) -> None:
    """Write a source and a config with every kind of secret."""
    place.prepare(
        texts,
        "leaky:make",
        model__kwargs=KWARGS | kwargs,
        env__API_TOKEN=SECRETS["of env"],
        recovery__attempts=1,
        recovery__wait_timeout=0.1,
        recovery__stall_timeout=2,
        **changes,
    )


@pytest.mark.parametrize(
    ("texts", "kwargs", "start", "code"),
    [
        (["raise", "abort"], {}, "fresh", 3),
        (["raise", "exit", "nan"], {}, "warm", 3),
        (["disk"], {}, "warm", 74),
        (["busy"], {}, "warm", 3),
        (["memory"], {}, "fresh", 3),
        (["device"], {}, "warm", 3),
        (["hang"], {}, "fresh", 3),
        (["fine"], {"fails": "import"}, "warm", 78),
        (["fine"], {"fails": "load"}, "fresh", 78),
        (["fine"], {}, "warm", 0),
    ],
)
def test_a_run_that_fails_writes_no_secret(
    workplace: Workplace, texts: list[str], kwargs: dict[str, Any], start: str, code: int
) -> None:
    """Whatever a run ends with, neither its workdir nor anything printed has a secret, though the
    plug-in gets it.
    """
    prepare(workplace, ["one", *texts], kwargs, workers__start=start)
    typed = ("--set", f"model.kwargs.base_url={KWARGS['base_url']}")
    ended = [workplace.run(*typed, env=ENVIRONMENT)]
    assert ended[0].returncode == code, ended[0]
    for command in (("status",), ("status", "--json"), ("report",), ("verify", "--json")):
        name, *options = command
        ended.append(workplace.call(name, str(workplace.workdir), *options, env=ENVIRONMENT))
    assert leaks(workplace, *ended) == []


def test_refusals_and_the_doctor_name_no_secret(workplace: Workplace) -> None:
    """Wrong configs, another secret than before, and what the doctor finds are told without them."""
    prepare(workplace, ["one", "raise"], {})
    config = str(workplace.config_path)
    ended = [workplace.run(env=ENVIRONMENT)]
    key = f"model.kwargs.apiKey={SECRETS['by key in camel case']}-2"
    for wrong in (
        key,
        f"model.kwargs.base_url=https://u:{SECRETS['by form']}@other",
        f"model.kwarg.token={SECRETS['by key']}",
        f"encode={{token: {SECRETS['by key']}}}",
        f"env.API_TOKEN=[{SECRETS['of the notices']}]",
        f"notify=[1, 'json://{SECRETS['of the notices']}']",
        f"model.name=https://user:{SECRETS['by form']}@host",
    ):
        ended.append(workplace.run("--set", wrong, env=ENVIRONMENT))
        assert ended[-1].returncode == 78, wrong
    ended.append(workplace.call("doctor", config, "--json", env=ENVIRONMENT))
    ended.append(workplace.call("audit", config, env=ENVIRONMENT))
    assert leaks(workplace, *ended) == []


def test_the_words_around_a_secret_stay(workplace: Workplace) -> None:
    """Only the secret itself is masked: the reason can still be read."""
    prepare(workplace, ["one", "raise"], {})
    workplace.run(env=ENVIRONMENT)
    (bad,) = workplace.manifest()["quarantined"]
    assert "refused: Bearer *** and https://user:***@example.org/v1 and ***" in bad["reason"]


def test_the_traceback_of_a_bug_has_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the command prints of an exception that it does not know is masked, too."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "argv", ["chunkvisor", "--version"])
    main()
    hide({"password": SECRETS["of the notices"]})
    sys.excepthook(ValueError, ValueError(f"not {SECRETS['of the notices']}"), None)
    assert capsys.readouterr().err == "ValueError: not ***\n"
