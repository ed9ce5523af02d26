"""Imports OpenVINO without what reports its use, and keeps its one `Core`."""

import functools
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


@functools.cache
def openvino_core() -> Any:
    """The only `Core` of this process, which lives as long. Raises ImportError.

    Each has a stack for the handlers of signals, and unmaps it at its end. Of two that end in the order in which they
    were made, the first one's stack stays in use: the next signal, even one with a handler, then ends the process,
    without the stack that faulthandler writes (openvino 2026.4, intel_cpu's SigAltStackSetup).
    """
    return import_openvino().Core()
