"""Driver, GPU and CUDA packages are missing, mismatched or not ready.

It never holds faults of a GPU that worked and then broke: those are in `cuda` and `hardware`.

torch reports most of these as RuntimeError("Unexpected error from cudaGetDeviceCount(). ... Error N: <string>"),
without a code; the strings are libcudart's.
"""

import re

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import (
    AT_WORK,
    BEFORE_WORK,
    CONFIG,
    MACHINE,
    NULL_GPU_TORCH,
    PASSING,
    Evidence,
    Rule,
    error,
    of_class,
    runtime_error,
)

_CUDNN = (
    r"CUDNN_STATUS_SUBLIBRARY_(?:LOADING_FAILED|VERSION_MISMATCH)|CUDNN_STATUS_VERSION_MISMATCH"
    r"|Unable to load any of \{libcudnn|Could not load symbol cudnn|Cannot load symbol cudnn"
)

_MPS = (
    r"Error 80[5-9]: |MPS client failed to connect|between the MPS server and the MPS client failed"
    r"|MPS server is not ready|hardware resources required to (?:create MPS client|support device connections)"
)

DRIVER_RULES: tuple[Rule, ...] = (
    Rule(
        name="no-nvidia-driver",
        outcome=Outcome.SETUP,
        cause="There is no NVIDIA driver here, or the container was started without one.",
        remedy="Install the driver, or start the container with `docker run --gpus all`, until `nvidia-smi` works.",
        signs=(
            runtime_error(r"Found no NVIDIA driver on your system"),
            error(r"couldn't communicate with the NVIDIA driver"),
        ),
        exit_code=MACHINE,
        evidence=Evidence.RUN,
    ),
    Rule(
        name="driver-too-old",
        outcome=Outcome.SETUP,
        cause="The NVIDIA driver is older than the CUDA that this torch was built for.",
        remedy="Update the driver, or install a torch built for the CUDA version that `nvidia-smi` shows.",
        signs=(
            runtime_error(
                r"NVIDIA driver on your system is too old|CUDA driver version is insufficient for CUDA runtime"
                r"|API call is not supported in the installed CUDA driver",
                *(35, 36),
            ),
        ),
        exit_code=MACHINE,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="no-gpu-visible",
        outcome=Outcome.SETUP,
        cause="The driver works but shows this process no GPU.",
        remedy="Check CUDA_VISIBLE_DEVICES, `device:` in the config and the container's GPUs against `nvidia-smi -L`.",
        signs=(runtime_error(r"No CUDA GPUs are available|no CUDA-capable device is detected", 100),),
        exit_code=MACHINE,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="gpu-exclusive",
        outcome=Outcome.GPU_BUSY,
        cause="Another process holds the GPU for itself (exclusive compute mode).",
        remedy="Wait for the other process or end it; `nvidia-smi -q -d COMPUTE` shows the mode.",
        signs=(runtime_error(r"CUDA-capable device\(s\) is/are busy or unavailable", 46),),
        exit_code=PASSING,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="gpu-services-not-ready",
        outcome=Outcome.GPU_BUSY,
        cause="The GPU's services are not up yet, mostly the Fabric Manager of a machine with NVSwitch.",
        remedy="Start them (`systemctl start nvidia-fabricmanager nvidia-persistenced`).",
        signs=(runtime_error(r"system not yet initialized", 802),),
        exit_code=MACHINE,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="mps-unavailable",
        outcome=Outcome.GPU_BUSY,
        cause="The MPS server of this GPU refuses clients or cannot be reached.",
        remedy="Start or restart it (`nvidia-cuda-mps-control -d`), or unset CUDA_MPS_PIPE_DIRECTORY.",
        signs=(runtime_error(_MPS, 805, 806, 807, 808, 809),),
        exit_code=PASSING,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="driver-library-mismatch",
        outcome=Outcome.SETUP,
        cause="Kernel module and libraries of the NVIDIA driver are of different versions, mostly after an update.",
        remedy="Reboot, or unload and load the nvidia kernel modules.",
        signs=(
            runtime_error(r"unsupported display driver / cuda driver combination", 803),
            error(r"Driver/library version mismatch"),
        ),
        exit_code=MACHINE,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="forward-compatibility",
        outcome=Outcome.SETUP,
        cause="A CUDA compatibility library was loaded that this GPU or driver does not support.",
        remedy="Remove the cuda-compat package or its folder from LD_LIBRARY_PATH; if there is none, reboot, since "
        "driver and libraries may differ.",
        signs=(runtime_error(r"forward compatibility was attempted on non supported HW", 804),),
        exit_code=MACHINE,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="stub-driver",
        outcome=Outcome.SETUP,
        cause="The CUDA stub library, made for building only, was loaded instead of the driver's.",
        remedy="Remove the folder cuda/stubs from LD_LIBRARY_PATH.",
        signs=(runtime_error(r"CUDA driver is a stub library", 34),),
        exit_code=MACHINE,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="torch-without-cuda",
        outcome=Outcome.SETUP,
        cause="The installed torch is a build without CUDA.",
        remedy="Install a CUDA build of torch, or set `device: cpu`.",
        signs=(error(r"Torch not compiled with CUDA enabled", "builtins.AssertionError"),),
        exit_code=MACHINE,
        evidence=Evidence.RUN,
    ),
    Rule(
        # A forked worker found CUDA initialised before the fork; a fresh interpreter never does.
        name="cuda-before-fork",
        outcome=Outcome.CRASHED,
        cause="The worker was forked from a process that had touched CUDA, which no fork survives.",
        remedy="Set workers.start to fresh; if the model or a plug-in touches CUDA while loading, make it wait.",
        signs=(runtime_error(r"Cannot re-initialize CUDA in forked subprocess"),),
        fresh_process_helps=True,
    ),
    Rule(
        name="gpu-not-supported-by-torch",
        outcome=Outcome.SETUP,
        cause="This torch, or an extension, was not built for this generation of GPU.",
        remedy="Install a torch whose `torch.cuda.get_arch_list()` has this GPU's compute capability.",
        signs=(
            runtime_error(
                r"no kernel image is available for execution on the device|invalid device function"
                r"|device kernel image is invalid|the provided PTX was compiled with an unsupported toolchain"
                r"|CUBLAS_STATUS_ARCH_MISMATCH|CUDNN_STATUS_ARCH_MISMATCH",
                *(98, 200, 209, 222, 300),
            ),
        ),
        log=re.compile(r"no kernel image is available for execution on the device|device kernel image is invalid"),
        exit_code=MACHINE,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="ptx-not-compiled",
        outcome=Outcome.SETUP,
        cause="torch or an extension has no ready kernels for this GPU, and those in PTX cannot be compiled here.",
        remedy="Install a build for this GPU; or unset CUDA_DISABLE_PTX_JIT and CUDA_DISABLE_JIT, and give the "
        "container the driver's libnvidia-ptxjitcompiler.",
        signs=(
            runtime_error(
                r"a PTX JIT compilation failed|PTX JIT compiler library not found|PTX JIT compilation was disabled",
                *(218, 221, 223),
            ),
        ),
        exit_code=MACHINE,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="cuda-call-refused",
        outcome=Outcome.SETUP,
        cause="The operating system, the container or this kind of GPU (virtual, a slice) does not allow what CUDA "
        "was asked to do.",
        remedy="Take allocator options such as expandable_segments out of PYTORCH_CUDA_ALLOC_CONF, give the container "
        "all devices of the GPU (`docker run --gpus all`), and see the kernel's log.",
        signs=(
            runtime_error(
                r"OS call failed or operation not supported on this OS"
                r"|(?m:CUDA (?:driver )?error: operation not (?:permitted|supported)$)",
                *(304, 800, 801),
            ),
        ),
        exit_code=MACHINE,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="no-such-gpu",
        outcome=Outcome.SETUP,
        cause="The config names a GPU or a device that does not exist here.",
        remedy="Correct `device:`; `nvidia-smi -L` lists the GPUs.",
        signs=(
            runtime_error(r"GPU device may be out of range|invalid device ordinal", 101),
            runtime_error(r"^Expected one of cpu, cuda, .{0,300} device type at start of device string"),
            runtime_error(r"^Invalid device string: "),
        ),
        exit_code=CONFIG,
    ),
    Rule(
        name="cudnn-mixed",
        outcome=Outcome.SETUP,
        cause="Parts of several cuDNN versions were loaded together, or some are missing.",
        remedy="Remove other copies of cuDNN from LD_LIBRARY_PATH, and install the nvidia-cudnn package that torch "
        "asks for.",
        signs=(runtime_error(_CUDNN),),
        log=re.compile(_CUDNN),
        exit_code=MACHINE,
        evidence=Evidence.REPORTED,
    ),
    Rule(
        name="container-lost-gpu",
        outcome=Outcome.SETUP,
        cause="The container lost its right to the GPU's devices, mostly by a reload of systemd on the host, which is "
        "fine itself.",
        remedy="Recreate the container, and give it the devices explicitly "
        "(NVIDIA/nvidia-container-toolkit#48 lists the ways).",
        signs=(error(r"Failed to initialize NVML: Unknown Error|operating system has blocked the request"),),
        exit_code=MACHINE,
        evidence=Evidence.REPORTED,
    ),
    Rule(
        name="cuda-unknown-error",
        outcome=Outcome.DEVICE_FAULT,
        cause="CUDA failed in the middle of the work, without saying why.",
        remedy="The chunk is tried again in a new process; if it returns, see the kernel's log for Xid messages and "
        "`nvidia-smi`.",
        signs=(runtime_error(r"CUDA (?:driver )?error: unknown error", 999),),
        phases=AT_WORK,
        exit_code=MACHINE,
        fresh_process_helps=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        name="cuda-does-not-start",
        outcome=Outcome.SETUP,
        cause="The driver could not be started, without saying why.",
        remedy="See whether `nvidia-smi` works and what the kernel's log says; after a suspend, reload nvidia_uvm "
        "(`modprobe -r nvidia_uvm && modprobe nvidia_uvm`) or reboot.",
        signs=(
            runtime_error(
                r"CUDA driver initialization failed|CUDA unknown error - this may be due to"
                r"|CUDA (?:driver )?error: (?:initialization|unknown) error",
                *(3, 999),
            ),
            runtime_error(r"Unexpected error from cudaGetDeviceCount"),
        ),
        exit_code=MACHINE,
        fresh_process_helps=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        # Nothing but the context and the weights has been asked for: what fails here fails in every worker.
        name="cuda-error-before-work",
        outcome=Outcome.DEVICE_FAULT,
        cause="A CUDA call failed before the first batch, with an error that no rule knows.",
        remedy="Look the error up in NVIDIA's documentation; `chunkvisor doctor` tries the GPU without a run.",
        signs=(
            of_class("torch.AcceleratorError", "torch.cuda.CudaError"),
            runtime_error(r"\bCUDA (?:driver )?error: "),
        ),
        phases=BEFORE_WORK,
        exit_code=MACHINE,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
    Rule(
        # AcceleratorError of a code without a rule; and old torch, which raises a plain RuntimeError.
        name="cuda-error",
        outcome=Outcome.DEVICE_FAULT,
        cause="A CUDA call failed with an error that no rule knows.",
        remedy="The chunk is tried again in a new process; if it returns, look the error up in NVIDIA's documentation.",
        signs=(
            of_class("torch.AcceleratorError", "torch.cuda.CudaError"),
            runtime_error(r"\bCUDA (?:driver )?error: "),
        ),
        fresh_process_helps=True,
        evidence=Evidence.NULL_GPU,
        seen=NULL_GPU_TORCH,
    ),
)
