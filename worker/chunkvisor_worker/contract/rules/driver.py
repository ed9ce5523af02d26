"""Driver, GPU and CUDA packages are missing, mismatched or not ready.

torch reports most of these as RuntimeError("Unexpected error from cudaGetDeviceCount(). ... Error N: <string>"),
without a code; the strings are libcudart's.
"""

from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.rule import (
    AT_WORK,
    BEFORE_WORK,
    CONFIG,
    MACHINE,
    NEW_PROCESS,
    Evidence,
    Rule,
    device_fault,
    error,
    gpu_busy,
    of_class,
    runtime_error,
    setup,
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
    setup(
        "no-nvidia-driver",
        "There is no NVIDIA driver here, or the container was started without one.",
        "Install the driver, or start the container with `docker run --gpus all`, until `nvidia-smi` works.",
        runtime_error(r"Found no NVIDIA driver on your system"),
        error(r"couldn't communicate with the NVIDIA driver"),
        evidence=Evidence.RUN,
    ),
    setup(
        "driver-too-old",
        "The NVIDIA driver is older than the CUDA that this torch was built for.",
        "Update the driver, or install a torch built for the CUDA version that `nvidia-smi` shows.",
        runtime_error(
            r"NVIDIA driver on your system is too old|CUDA driver version is insufficient for CUDA runtime"
            r"|API call is not supported in the installed CUDA driver",
            *(35, 36),
        ),
    ),
    setup(
        "no-gpu-visible",
        "The driver works but shows this process no GPU.",
        "Check CUDA_VISIBLE_DEVICES, `device:` in the config and the container's GPUs against `nvidia-smi -L`.",
        runtime_error(r"No CUDA GPUs are available|no CUDA-capable device is detected", 100),
    ),
    gpu_busy(
        "gpu-exclusive",
        "Another process holds the GPU for itself (exclusive compute mode).",
        "Wait for the other process or end it; `nvidia-smi -q -d COMPUTE` shows the mode.",
        runtime_error(r"CUDA-capable device\(s\) is/are busy or unavailable", 46),
        evidence=Evidence.NULL_GPU,
    ),
    setup(
        "gpu-services-not-ready",
        "The GPU's services are not up yet, mostly the Fabric Manager of a machine with NVSwitch.",
        "Start them (`systemctl start nvidia-fabricmanager nvidia-persistenced`).",
        runtime_error(r"system not yet initialized", 802),
        outcome=Outcome.GPU_BUSY,
    ),
    gpu_busy(
        "mps-unavailable",
        "The MPS server of this GPU refuses clients or cannot be reached.",
        "Start or restart it (`nvidia-cuda-mps-control -d`), or unset CUDA_MPS_PIPE_DIRECTORY.",
        runtime_error(_MPS, 805, 806, 807, 808, 809),
    ),
    setup(
        "driver-library-mismatch",
        "Kernel module and libraries of the NVIDIA driver are of different versions, mostly after an update.",
        "Reboot, or unload and load the nvidia kernel modules.",
        runtime_error(r"unsupported display driver / cuda driver combination", 803),
        error(r"Driver/library version mismatch"),
    ),
    setup(
        "forward-compatibility",
        "A CUDA compatibility library was loaded that this GPU or driver does not support.",
        "Remove the cuda-compat package or its folder from LD_LIBRARY_PATH; if there is none, reboot, since "
        "driver and libraries may differ.",
        runtime_error(r"forward compatibility was attempted on non supported HW", 804),
    ),
    setup(
        "stub-driver",
        "The CUDA stub library, made for building only, was loaded instead of the driver's.",
        "Remove the folder cuda/stubs from LD_LIBRARY_PATH.",
        runtime_error(r"CUDA driver is a stub library", 34),
    ),
    setup(
        "torch-without-cuda",
        "The installed torch is a build without CUDA.",
        "Install a CUDA build of torch, or set `device: cpu`.",
        error(r"Torch not compiled with CUDA enabled", "builtins.AssertionError"),
        evidence=Evidence.RUN,
    ),
    device_fault(
        # A forked worker found CUDA initialised before the fork; a fresh interpreter never does.
        "cuda-before-fork",
        "The worker was forked from a process that had touched CUDA, which no fork survives.",
        "Set workers.start to fresh; if the model or a plug-in touches CUDA while loading, make it wait.",
        runtime_error(r"Cannot re-initialize CUDA in forked subprocess"),
        outcome=Outcome.CRASHED,
        evidence=Evidence.READ,
    ),
    setup(
        "gpu-not-supported-by-torch",
        "This torch, or an extension, was not built for this generation of GPU.",
        "Install a torch whose `torch.cuda.get_arch_list()` has this GPU's compute capability.",
        runtime_error(
            r"no kernel image is available for execution on the device|invalid device function"
            r"|device kernel image is invalid|the provided PTX was compiled with an unsupported toolchain"
            r"|CUBLAS_STATUS_ARCH_MISMATCH|CUDNN_STATUS_ARCH_MISMATCH",
            *(98, 200, 209, 222, 300),
        ),
        log=r"no kernel image is available for execution on the device|device kernel image is invalid",
    ),
    setup(
        "ptx-not-compiled",
        "torch or an extension has no ready kernels for this GPU, and those in PTX cannot be compiled here.",
        "Install a build for this GPU; or unset CUDA_DISABLE_PTX_JIT and CUDA_DISABLE_JIT, and give the "
        "container the driver's libnvidia-ptxjitcompiler.",
        runtime_error(
            r"a PTX JIT compilation failed|PTX JIT compiler library not found|PTX JIT compilation was disabled",
            *(218, 221, 223),
        ),
    ),
    setup(
        "cuda-call-refused",
        "The operating system, the container or this kind of GPU (virtual, a slice) does not allow what CUDA "
        "was asked to do.",
        "Take allocator options such as expandable_segments out of PYTORCH_CUDA_ALLOC_CONF, give the container "
        "all devices of the GPU (`docker run --gpus all`), and see the kernel's log.",
        runtime_error(
            r"OS call failed or operation not supported on this OS"
            r"|(?m:CUDA (?:driver )?error: operation not (?:permitted|supported)$)",
            *(304, 800, 801),
        ),
    ),
    setup(
        "no-such-gpu",
        "The config names a GPU or a device that does not exist here.",
        "Correct `device:`; `nvidia-smi -L` lists the GPUs.",
        runtime_error(r"GPU device may be out of range|invalid device ordinal", 101),
        runtime_error(r"^Expected one of cpu, cuda, .{0,300} device type at start of device string"),
        runtime_error(r"^Invalid device string: "),
        exit_code=CONFIG,
        evidence=Evidence.READ,
    ),
    setup(
        "cudnn-mixed",
        "Parts of several cuDNN versions were loaded together, or some are missing.",
        "Remove other copies of cuDNN from LD_LIBRARY_PATH, and install the nvidia-cudnn package that torch asks for.",
        runtime_error(_CUDNN),
        log=_CUDNN,
        evidence=Evidence.REPORTED,
    ),
    setup(
        "container-lost-gpu",
        "The container lost its right to the GPU's devices, mostly by a reload of systemd on the host, which is "
        "fine itself.",
        "Recreate the container, and give it the devices explicitly "
        "(NVIDIA/nvidia-container-toolkit#48 lists the ways).",
        error(r"Failed to initialize NVML: Unknown Error|operating system has blocked the request"),
        evidence=Evidence.REPORTED,
    ),
    device_fault(
        "cuda-unknown-error",
        "CUDA failed in the middle of the work, without saying why.",
        "The chunk is tried again in a new process; if it returns, see the kernel's log for Xid messages and "
        "`nvidia-smi`.",
        runtime_error(r"CUDA (?:driver )?error: unknown error", 999),
        phases=AT_WORK,
        exit_code=MACHINE,
    ),
    setup(
        "cuda-does-not-start",
        "The driver could not be started, without saying why.",
        "See whether `nvidia-smi` works and what the kernel's log says; after a suspend, reload nvidia_uvm "
        "(`modprobe -r nvidia_uvm && modprobe nvidia_uvm`) or reboot.",
        runtime_error(
            r"CUDA driver initialization failed|CUDA unknown error - this may be due to"
            r"|CUDA (?:driver )?error: (?:initialization|unknown) error",
            *(3, 999),
        ),
        runtime_error(r"Unexpected error from cudaGetDeviceCount"),
        hints=NEW_PROCESS,
    ),
    setup(
        # Nothing but the context and the weights has been asked for: what fails here fails in every worker.
        "cuda-error-before-work",
        "A CUDA call failed before the first batch, with an error that chunkvisor does not know.",
        "Look the error up in NVIDIA's documentation; `chunkvisor doctor` tries the GPU without a run.",
        of_class("torch.AcceleratorError", "torch.cuda.CudaError"),
        runtime_error(r"\bCUDA (?:driver )?error: "),
        outcome=Outcome.DEVICE_FAULT,
        phases=BEFORE_WORK,
    ),
    device_fault(
        # AcceleratorError of a code without a rule; and old torch, which raises a plain RuntimeError.
        "cuda-error",
        "A CUDA call failed with an error that chunkvisor does not know.",
        "The chunk is tried again in a new process; if it returns, look the error up in NVIDIA's documentation.",
        of_class("torch.AcceleratorError", "torch.cuda.CudaError"),
        runtime_error(r"\bCUDA (?:driver )?error: "),
    ),
)
