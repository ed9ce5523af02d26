"""The examples for containers agree with the program: its exit codes, its grace, its extras and its
uid.
"""

import re
from typing import Any

import yaml

from chunkvisor.errors import ExitCode
from configpart import default, keys
from docpages import EXTRAS
from harness import ROOT

EXAMPLES = ROOT / "examples" / "containers"
GRACE_S = float(default(keys()["recovery.grace"]).strip("`"))


def documents(name: str) -> list[dict[str, Any]]:
    """What is in a YAML file."""
    return list(yaml.safe_load_all((EXAMPLES / name).read_text("utf-8")))


def test_the_job_starts_again_what_is_worth_it() -> None:
    """The Job fails for codes that need a person, tries others again, and waits longer than a run
    takes to end.
    """
    claim, job = documents("job.yaml")
    rules = job["spec"]["podFailurePolicy"]["rules"]
    (codes,) = [set(rule["onExitCodes"]["values"]) for rule in rules if rule["action"] == "FailJob"]
    assert codes == {1, 2, 3, 69, 74, 78}
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
    """The Dockerfile copies what is there and installs extras that exist, and its user is that of
    the Job.
    """
    text = (EXAMPLES / "Dockerfile").read_text("utf-8")
    (listed,) = re.findall(r"\.whl\)\[([a-z,]+)\]", text)
    assert set(listed.split(",")) <= EXTRAS
    allowed = (EXAMPLES / "Dockerfile.dockerignore").read_text("utf-8")
    for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
            assert f"!{name}\n" in allowed, name
    _, job = documents("job.yaml")
    (uid,) = re.findall(r"^USER (\d+)$", text, re.MULTILINE)
    assert job["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(uid)
    assert re.search(r'^ENTRYPOINT \["tini", "--", "chunkvisor"\]$', text, re.MULTILINE)
