"""Builds the null GPU with gcc, into a cache beside the environment: about a second, once for every
source and torch.

It never touches the checkout. `python tests/nullgpu/build.py` prints the folder.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_LIBRARY_SOURCES = ("machine.c", "device.c", "runtime.c", "driver.c", "blas.c", "files.c")
_SOURCES = (*_LIBRARY_SOURCES, "smi.c", "machine.h", "device.h", "build.py")
_FLAGS = ("-O1", "-g", "-std=gnu17", "-Wall", "-Wextra", "-Werror")

_REAL = frozenset({"cudaGetErrorString", "cudaGetErrorName"})
"""What stays the real libcudart's: its texts are part of the errors that torch raises."""

_HOST_DEFINES = """
#define __host__
#define __device__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define __inline__ __inline
#define __forceinline__ inline
#define __no_return__
#define __specialization_static static
#define CUDARTAPI
#define CUDARTAPI_CDECL
"""
"""The compiler's own header, which does not come with torch: what the runtime's headers need of it."""


@dataclass(frozen=True, slots=True)
class Built:
    """Where the null GPU lies."""

    preload: Path
    """For LD_PRELOAD."""
    libraries: Path
    """For LD_LIBRARY_PATH: libcuda.so.1 and libnvidia-ml.so.1."""
    smi: Path
    """The stand-in for nvidia-smi."""


def build(cache: Path | None = None) -> Built:
    """The null GPU for the torch of this interpreter; builds it where it is not there yet.

    Raises RuntimeError, in words, where torch or gcc is missing or a source does not compile.
    """
    torch = _torch_folder()
    version = re.search(r'__version__ = ["\']([^"\']+)', (torch / "version.py").read_text())
    digest = hashlib.sha256(
        b"\0".join((_HERE / name).read_bytes() for name in _SOURCES)
    ).hexdigest()[:16]
    cache = cache or cache_folder() / "built"
    folder = cache / f"{digest}-{version[1] if version else 'unknown'}"
    built = Built(folder / "libnullgpu.so", folder / "lib", folder / "bin" / "nvidia-smi")
    if built.smi.exists():
        return built
    cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=cache))
    try:
        _compile(torch, scratch)
        try:
            scratch.rename(folder)
        except OSError:
            if not built.smi.exists():  # else somebody else was faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return built


def cache_folder() -> Path:
    """Where environments and builds lie, for all checkouts together."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "chunkvisor" / "nullgpu"


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise RuntimeError(
            f"the null GPU needs torch's CUDA build, which {sys.executable} lacks: make "
            f"test-nullgpu"
        )
    return Path(spec.origin).parent


def _compile(torch: Path, out: Path) -> None:
    headers = torch.parent / "nvidia" / "cu13" / "include"
    if not (headers / "cuda_runtime_api.h").exists():
        raise RuntimeError(f"torch in {torch} is no build for CUDA 13: {headers} is missing")
    (out / "include" / "crt").mkdir(parents=True)
    (out / "include" / "crt" / "host_defines.h").write_text(_HOST_DEFINES)
    (out / "stubs.c").write_text(_stubs(torch))
    (out / "lib").mkdir()
    (out / "bin").mkdir()
    (out / "empty.c").write_text("")
    sources = [str(_HERE / name) for name in _LIBRARY_SOURCES]
    include = ("-I", str(_HERE), "-I", str(out / "include"), "-isystem", str(headers))
    library = str(out / "libnullgpu.so")
    sources.append(str(out / "stubs.c"))
    _gcc("-shared", "-fPIC", "-Wl,-soname,libnullgpu.so", *include, "-o", library, *sources, "-ldl")
    _gcc("-o", str(out / "bin" / "nvidia-smi"), str(_HERE / "smi.c"), str(_HERE / "machine.c"))
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        # Empty: dlsym on it finds what libnullgpu.so has, which it says that it needs.
        needs = ("-Wl,--no-as-needed", library, "-Wl,-rpath,$ORIGIN/..")
        _gcc(
            "-shared",
            f"-Wl,-soname,{name}",
            "-o",
            str(out / "lib" / name),
            str(out / "empty.c"),
            *needs,
        )


def _gcc(*arguments: str) -> None:
    try:
        done = subprocess.run(
            ["gcc", *_FLAGS, *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise RuntimeError(
            "the null GPU is built by gcc, which is not here (Debian: apt-get install gcc)"
        ) from None
    if done.returncode:
        raise RuntimeError(f"gcc failed:\n{done.stderr}")


def _stubs(torch: Path) -> str:
    """A body for each function of CUDA that torch's libraries want and the sources do not have."""
    text = "\n".join((_HERE / name).read_text() for name in _LIBRARY_SOURCES)
    own = set(re.findall(r"\b(_{0,2}cuda\w+|cublas\w+)\(", text))
    wanted: set[str] = set()
    for library in sorted((torch / "lib").glob("*.so")):
        listed = subprocess.run(
            ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
        )
        wanted |= set(re.findall(r"\b(\w+)@lib(?:cudart|cublas|cublasLt)\.so", listed.stdout))
    lines = ['#include "device.h"']
    for name in sorted(wanted - own - _REAL):
        if name.startswith("cublas"):
            # Setters and layouts launch nothing.
            launches = "0" if re.search(r"Set|Get|Layout|Desc|Preference", name) else "LAUNCHES"
            lines.append(
                f"int {name}(void) "
                f'{{ return stub("{name}", BLAS | NEEDS_CONTEXT | {launches}, 0); }}'
            )
        else:
            answer = 801 if re.search(r"Graph|Ipc|Capture|Library", name) else 0
            lines.append(f'int {name}(void) {{ return stub("{name}", NEEDS_CONTEXT, {answer}); }}')
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(build().preload.parent)
