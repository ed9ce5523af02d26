"""The tables of faults by family, and the one order in which they are tried."""

from chunkvisor_worker.contract.rule import Rule
from chunkvisor_worker.contract.rules.cuda import CUDA_RULES, HARDWARE_RULES
from chunkvisor_worker.contract.rules.driver import DRIVER_RULES
from chunkvisor_worker.contract.rules.gpu_memory import GPU_MEMORY_RULES
from chunkvisor_worker.contract.rules.host import DISK_RULES, HOST_RULES
from chunkvisor_worker.contract.rules.input import INPUT_RULES
from chunkvisor_worker.contract.rules.model import HUB_RULES, MODEL_RULES
from chunkvisor_worker.contract.rules.process import INTERRUPTION_RULES, PROCESS_RULES, UNKNOWN_RULES

FAMILIES: dict[str, tuple[Rule, ...]] = {
    "Interruption": INTERRUPTION_RULES,
    "Hardware": HARDWARE_RULES,
    "Broken CUDA context": CUDA_RULES,
    "GPU memory": GPU_MEMORY_RULES,
    "Driver and GPU setup": DRIVER_RULES,
    "Disk": DISK_RULES,
    "Host memory and limits": HOST_RULES,
    "Model hub": HUB_RULES,
    "Model and configuration": MODEL_RULES,
    "Input and output": INPUT_RULES,
    "Death of the process": PROCESS_RULES,
    "Everything else": UNKNOWN_RULES,
}
"""After an interruption, worst first: a sticky CUDA fault makes all later calls fail, allocations included, so it is
the cause wherever it stands in a chain."""

OF_GPUS = frozenset(
    rule.name
    for family in ("Hardware", "Broken CUDA context", "GPU memory", "Driver and GPU setup")
    for rule in FAMILIES[family]
)
"""Rules about a GPU, its memory or its driver: in a run on the CPU such an error is the encoder's own."""

RULES: tuple[Rule, ...] = tuple(rule for family in FAMILIES.values() for rule in family)
"""All rules, in the order in which they are tried; the first that fits wins."""
