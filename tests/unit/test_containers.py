"""The examples for containers agree with the program: its exit codes, its grace, its extras and its uid."""

import re
import tomllib
from dataclasses import replace
from typing import Any

import pytest
import yaml

import checkcontainers
from checkcontainers import CHECKS, Check
from chunkvisor.errors import ExitCode
from configpart import default, keys
from harness import ROOT

EXAMPLES = ROOT / "examples" / "containers"
A_PERSON_FIRST = {ExitCode.BUG, ExitCode.USAGE, ExitCode.QUARANTINED, ExitCode.MACHINE, ExitCode.DISK, ExitCode.CONFIG}
GRACE_S = float(default(keys()["recovery.grace"]).strip("`"))


def documents(name: str) -> list[dict[str, Any]]:
    """What is in a YAML file."""
    return list(yaml.safe_load_all((EXAMPLES / name).read_text("utf-8")))


def test_the_job_starts_again_what_is_worth_it() -> None:
    """The Job fails for codes that need a person, tries others again, and waits longer than a run takes to end."""
    claim, job = documents("job.yaml")
    rules = job["spec"]["podFailurePolicy"]["rules"]
    (codes,) = [set(rule["onExitCodes"]["values"]) for rule in rules if rule["action"] == "FailJob"]
    assert codes == A_PERSON_FIRST
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] >= GRACE_S + 20
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {
        each["name"] for each in pod["volumes"]
    }


def test_the_task_starts_again_what_is_worth_it() -> None:
    """The task of SkyPilot recovers after a 75 alone, and its work is on the volume."""
    (task,) = documents("skypilot.yaml")
    assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [ExitCode.TRY_AGAIN]
    assert list(task["volumes"]) == ["/data"]
    assert task["envs"]["HF_HOME"].startswith("/data/")
    assert task["run"].startswith("exec ")


def test_the_image_has_what_a_run_needs() -> None:
    """The Dockerfile copies what is there and installs extras that exist, and its user is that of the Job."""
    text = (EXAMPLES / "Dockerfile").read_text("utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (listed,) = re.findall(r"\.whl\)\[([a-z,]+)\]", text)
    assert set(listed.split(",")) <= extras.keys()
    allowed = (EXAMPLES / "Dockerfile.dockerignore").read_text("utf-8")
    for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
            assert f"!{name}\n" in allowed, name
    _, job = documents("job.yaml")
    (uid,) = re.findall(r"^USER (\d+)$", text, re.MULTILINE)
    assert job["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(uid)
    assert re.search(r'^ENTRYPOINT \["tini", "--", "chunkvisor"\]$', text, re.MULTILINE)


SEES = ("sh", "-c", 'grep -q "^WORKDIR /data$" "$1" || { echo no folder; exit 1; }', "sh")
LINTER = replace(CHECKS[0], package="pytest", commands=(("true",), SEES))


@pytest.mark.parametrize(
    ("checks", "code", "words"),
    [
        ((LINTER, replace(LINTER, package="none-of-these")), 0, "left out, none-of-these is not installed"),
        ((replace(LINTER, package="none-of-these"),), 1, "left out"),
        ((LINTER, replace(LINTER, commands=(("false",),))), 1, "exit code 1"),
        ((LINTER, replace(LINTER, commands=(("true",),))), 1, "also passes a copy with 'WORKDIR data' in it"),
    ],
    ids=["one is missing", "all are missing", "a complaint", "nothing is seen"],
)
def test_a_check_counts_where_it_can_say_no(
    checks: tuple[Check, ...], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make check-containers` fails for a complaint, for a linter that passes everything, and where there is none."""
    assert checkcontainers.main(checks) == code
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.file)
def test_a_copy_gets_its_mistake(check: Check) -> None:
    """What the mistake takes the place of is in each of the files."""
    assert not checkcontainers.lets_mistakes_pass(replace(check, commands=(("false",),)))
