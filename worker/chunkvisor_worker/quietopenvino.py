"""Imports OpenVINO without what reports its use."""

import sys
from typing import Any


def import_openvino() -> Any:
    """The package openvino. Raises ImportError where it is not installed.

    It brings the package openvino_telemetry and, as it is imported, tells Google Analytics so, by a thread of its own,
    which a template must not have, and over a network that a worker must not use. Without that package it does without
    (openvino 2026.4, tools/ovc/telemetry_utils.py).
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # makes its import an ImportError
    import openvino

    return openvino
