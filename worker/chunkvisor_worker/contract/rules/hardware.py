"""Faults of the GPU itself.

It never holds faults that a program can cause: those are in `cuda`.
"""

import re

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import MACHINE, NULL_GPU_TORCH, Evidence, Rule, error, runtime_error

HARDWARE_RULES: tuple[Rule, ...] = (
    Rule(
        name="gpu-lost",
        outcome=Outcome.HARDWARE_FAULT,
        cause="The GPU has fallen off the PCIe bus (Xid 79): the driver cannot talk to it any more.",
        remedy="Reboot the machine; if it comes back, check power cables, seating and cooling of the GPU.",
        signs=(error(r"GPU is lost|GPU has fallen off the bus"),),
        log=re.compile(r"GPU is lost|GPU has fallen off the bus"),
        exit_code=MACHINE,
        evidence=Evidence.REPORTED,
    ),
    Rule(
        name="gpu-needs-reset",
        outcome=Outcome.HARDWARE_FAULT,
        cause="The GPU is in a state that only a reset ends.",
        remedy="End every process on the GPU and reset it as root (`nvidia-smi -r -i <GPU>`), or reboot.",
        signs=(error(r"GPU requires re(?:start|set)"),),
        exit_code=MACHINE,
        evidence=Evidence.REPORTED,
    ),
    Rule(
        # 214 is cudaErrorECCUncorrectable.
        name="gpu-ecc-error",
        outcome=Outcome.HARDWARE_FAULT,
        cause="The GPU's memory has an error that ECC cannot correct (Xid 48, 94 or 95).",
        remedy="See `nvidia-smi -q -d ECC,ROW_REMAPPER`; reset the GPU or reboot so that the row is remapped, and "
        "replace the card if errors return.",
        signs=(runtime_error(r"uncorrectable ECC error encountered", 214),),
        log=re.compile(r"uncorrectable ECC error encountered"),
        exit_code=MACHINE,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        # 220 is cudaErrorNvlinkUncorrectable.
        name="gpu-nvlink-error",
        outcome=Outcome.HARDWARE_FAULT,
        cause="The link between the GPUs failed (Xid 74).",
        remedy="See `nvidia-smi nvlink -e`; run on one GPU, reset the GPUs or reboot.",
        signs=(runtime_error(r"uncorrectable NVLink error", 220),),
        log=re.compile(r"uncorrectable NVLink error"),
        exit_code=MACHINE,
        fresh_process_helps=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
)
