"""Findings on memory, disk, and limits of processes and files, and on the Ray cluster. Pure."""

from collections.abc import Iterator, Sequence

from chunkvisor.commands.doctor.finding import Blame, Finding, State
from chunkvisor.commands.doctor.gpus import ALLOCATOR_RULE, rule_of
from chunkvisor.commands.doctor.readings import (
    ALLOCATOR,
    SEGMENTS_IPC,
    TF32,
    UNCACHED,
    UNREAD,
    FolderReading,
    HostReading,
    JobReading,
    Readings,
    Wanted,
    Whereabouts,
)
from chunkvisor.sources.child import SourceSize
from chunkvisor.store.disk import RESERVE_BYTES, need_bytes
from chunkvisor.units import counted, human_bytes

_NO_FLAG = ("", "0", "false", "off", "no", "n", "f")


def check_variables(readings: Readings) -> Iterator[Finding]:
    """Findings `allocator` and `environment`."""
    found = [*_check_allocator(readings), *_check_others(readings)]
    yield from found or [Finding("environment", State.OK, "no environment variable stands in the way")]


def _check_allocator(readings: Readings) -> Iterator[Finding]:
    check, given = "allocator", {name: readings.workers[name] for name in ALLOCATOR if readings.workers.get(name)}
    report = readings.probe.report
    if given and report is not None and report.gpus and rule_of(readings.probe) != ALLOCATOR_RULE:
        yield Finding(check, State.OK, f"torch takes {', '.join(f'{name}={value}' for name, value in given.items())}")
    if len(given) == 2:
        state = State.WARNING if len(set(given.values())) > 1 else State.NOTE
        meaning = f"{' and '.join(ALLOCATOR)} are both set; {ALLOCATOR[0]} wins, and the other is ignored"
        yield Finding(check, state, meaning, f"unset {ALLOCATOR[1]}")
    segments = any("expandable_segments:True" in value.replace(" ", "") for value in given.values())
    nvml_broken = readings.smi.returncode != 0 or any(gpu.mig for gpu in readings.smi.gpus)
    if segments and nvml_broken and readings.workers.get(SEGMENTS_IPC) != "0" and readings.wanted is not Wanted.CPU:
        meaning = "expandable_segments:True asks NVML at its first allocation, which does not work here"
        blame = Blame.CONFIG if SEGMENTS_IPC in readings.from_config else Blame.MACHINE
        yield Finding(check, State.WARNING, meaning, f"set {SEGMENTS_IPC}=0", blame)


def _check_others(readings: Readings) -> Iterator[Finding]:
    check, own, workers = "environment", readings.own, readings.workers
    if unread := [name for name in UNREAD if name in workers]:
        meaning = f"{' and '.join(unread)} set: no part of torch reads it, so it neither helps nor harms"
        yield Finding(check, State.NOTE, meaning, f"unset {' '.join(unread)}")
    if workers.get(UNCACHED, "0") != "0":
        meaning = f"{UNCACHED} is set in the config's env: every allocation asks the driver, which is very slow"
        yield Finding(check, State.WARNING, meaning, "remove it from env")
    elif UNCACHED in own and UNCACHED not in workers:
        yield Finding(check, State.NOTE, f"{UNCACHED} is set here; workers do not get it, since it is very slow")
    if any("stubs" in part.split("/") for part in workers.get("LD_LIBRARY_PATH", "").split(":")):
        meaning = "LD_LIBRARY_PATH has a folder named stubs: CUDA's stub library, made for building, may be loaded"
        yield Finding(check, State.WARNING, meaning, "remove that folder from LD_LIBRARY_PATH")
    if readings.wanted is Wanted.CPU:
        return
    if workers.get("CUDA_LAUNCH_BLOCKING", "").lower() not in _NO_FLAG:
        meaning = "CUDA_LAUNCH_BLOCKING is on: the GPU waits after every kernel, which is slow"
        yield Finding(check, State.WARNING, meaning, "unset it, unless you are looking for a CUDA fault")
    if TF32 in workers:
        meaning = f"{TF32}={workers[TF32]} changes the last digits of the vectors; a workdir is bound to it"
        yield Finding(check, State.NOTE, meaning)


def check_sources(readings: Readings) -> Iterator[Finding]:
    """A finding `source` for each output, by its first rows."""
    for source in readings.job.sources if readings.job is not None else ():
        if source.problem is None:
            yield Finding("source", State.OK, f"{source.output}: the first rows can be read")
            if source.note:
                yield Finding(
                    "source", State.WARNING, f"{source.output}: {source.note}", "correct the template", Blame.CONFIG
                )
        else:
            what, mend = source.problem
            yield Finding("source", State.FAULT, f"{source.output}: {what}", mend, Blame.CONFIG)


_LIBRARIES_BYTES = 1 << 30
"""About what torch and transformers take in a process, beside the weights."""
_SMALL_SHM_BYTES = 64 << 20
"""Docker's default for /dev/shm (docker run --shm-size)."""
_LITTLE_DISK_BYTES = 1 << 30
_MORE_DISK = "free some space, move the workdir, or set encode.truncate_dim"
_IN_RESERVE = f" ({human_bytes(RESERVE_BYTES)} of it in reserve)"
_FEW_FREE_FILES = 1000
_THREADS_OF_ITS_OWN = 32
"""Of a worker, beside one for every CPU in each of two pools: OpenMP's and the tokenizer's."""
_FEW_FILES, _VERY_FEW_FILES = 1024, 128
"""A worker with CUDA opens a hundred or two; 1024 is the usual soft limit."""


def check_cluster(readings: Readings) -> Iterator[Finding]:
    """Finding `cluster`: whether the config's Ray cluster answers, and has devices for the job."""
    cluster = readings.cluster
    if cluster is None:
        return
    if cluster.problem:
        mend = "start it: ray start --head; or correct engine.address; or, without Ray: pip install 'chunkvisor[ray]'"
        yield Finding("cluster", State.FAULT, f"no Ray cluster answers: {cluster.problem}", mend, Blame.MACHINE)
        return
    what = f"{counted(cluster.nodes, 'node')} with {counted(cluster.processors, 'processor')} and "
    what += counted(cluster.gpus, "GPU")
    if readings.wanted is not Wanted.CPU and not cluster.gpus:
        mend = "start a node on a machine with a GPU: ray start --address; or write device: cpu"
        yield Finding("cluster", State.WARNING, f"{what}; a run would wait for a GPU", mend)
        return
    yield Finding("cluster", State.OK, f"{what}; the other findings are about this machine")


def check_machine(readings: Readings) -> Iterator[Finding]:
    """Findings `memory`, `disk`, `shm`, `processes` and `files`."""
    host, job = readings.host, readings.job
    yield _check_memory(host, job)
    if job is not None:
        yield _check_disk(job)
    yield _check_shm(host, job)
    yield _check_tasks(host, job.workers if job else 1)
    yield _check_files(host)


def check_folder(check: str, what: str, folder: FolderReading) -> Finding | None:
    """The fault of a folder that cannot be written into, or None."""
    if not folder.writable:
        mend = "change its owner or its permissions, or choose another one"
        return Finding(check, State.FAULT, f"{what} {folder.path} cannot be written into by this user", mend)
    if folder.free_files is not None and folder.free_files < _FEW_FREE_FILES:
        meaning = f"{what} {folder.path} has room for {folder.free_files:,} more files only"
        return Finding(check, State.FAULT, meaning, "remove files there: the file system runs out of inodes")
    return None


def _check_memory(host: HostReading, job: JobReading | None) -> Finding:
    free, total = host.memory_available_bytes, host.memory_bytes
    if free is None or total is None:
        return Finding("memory", State.NOTE, "this machine does not tell how much memory may be used")
    text = f"{human_bytes(free)} of {human_bytes(total)} of memory are free"
    if job is not None and job.whereabouts is Whereabouts.PLUGIN:
        return Finding("memory", State.OK, f"{text}; how much the plug-in encoder needs is not known")
    workers, weights_bytes = (job.workers, job.weights_bytes or 0) if job else (1, 0)
    each = _LIBRARIES_BYTES + weights_bytes
    if free < each:
        meaning = f"{text}; a worker needs about {human_bytes(each)}, and would be killed by the kernel"
        mend = "free some, raise the container's limit, or take a smaller model"
        return Finding("memory", State.FAULT, meaning, mend)
    if free < workers * each:
        meaning = f"{text}; {workers} workers at once need about {human_bytes(workers * each)}"
        return Finding("memory", State.WARNING, meaning, "set workers.standby lower, or free some memory")
    return Finding("memory", State.OK, f"{text}; a worker needs about {human_bytes(each)}")


def _check_disk(job: JobReading) -> Finding:
    folder = job.workdir
    if (bad := check_folder("disk", "the workdir", folder)) is not None:
        return bad
    if folder.free_bytes is None:
        return Finding("disk", State.NOTE, f"the free space of {folder.path} is not known")
    free = folder.free_bytes
    text = f"{human_bytes(free)} free for the workdir"
    if job.rows == 0:
        return Finding("disk", State.OK, f"{text}; all outputs are complete")
    dimension = max((sample.dimension for sample in job.samples), default=0) or job.dimension
    if job.rows is not None and dimension:
        need = need_bytes(job.rows, job.rows, dimension)
        text += f"; {job.rows:,} rows of {dimension} dimensions need up to {human_bytes(need)}{_IN_RESERVE}"
        return Finding("disk", State.FAULT, text, _MORE_DISK) if free < need else Finding("disk", State.OK, text)
    if job.rows is None and (sizes := [each.size for each in job.sources if each.size is not None]):
        return _check_first_disk(free, text, sizes, dimension)
    if free < _LITTLE_DISK_BYTES:
        return Finding("disk", State.WARNING, text, "free some space, or move the workdir")
    return Finding("disk", State.OK, f"{text}; what is needed is known once the sources have been read")


def _check_first_disk(free: int, text: str, sizes: Sequence[SourceSize], dimension: int) -> Finding:
    """Of a job whose sources no run has read yet: what reading them takes, and then the vectors."""
    rows, staged = sum(each.rows for each in sizes), sum(each.staged_bytes for each in sizes)
    exact = all(each.exact for each in sizes)
    told = counted(rows, "row") if exact else f"about {counted(round(rows, 2 - len(str(rows))), 'row')}"
    text += f"; {told} need up to {human_bytes(staged)} for the copy of their texts"
    need = staged
    if dimension:
        vectors = need_bytes(rows, rows, dimension)
        need += vectors
        text += f", and {human_bytes(vectors)} for vectors of {dimension} dimensions{_IN_RESERVE}"
    else:
        text += ", and more for the vectors"
    # Rows are estimated by the first ones, and texts that repeat are kept once: half of it may do.
    if free < (need if exact else need // 2):
        return Finding("disk", State.FAULT, text, _MORE_DISK)
    return Finding("disk", State.WARNING, text, _MORE_DISK) if free < need else Finding("disk", State.OK, text)


def _check_shm(host: HostReading, job: JobReading | None) -> Finding:
    if host.shm_bytes is None:
        return Finding("shm", State.NOTE, "there is no /dev/shm; chunkvisor itself needs none")
    text = f"shared memory (/dev/shm) has {human_bytes(host.shm_bytes)}"
    if host.shm_bytes > _SMALL_SHM_BYTES:
        return Finding("shm", State.OK, text)
    text += ", little for code that passes tensors between processes (a DataLoader with workers); "
    mend = "start the container with --shm-size=2g or more"
    if job is not None and job.whereabouts is Whereabouts.PLUGIN:
        return Finding("shm", State.WARNING, f"{text}the plug-in encoder may be such code", mend)
    return Finding("shm", State.NOTE, f"{text}chunkvisor itself is none", mend)


def _check_tasks(host: HostReading, workers: int) -> Finding:
    if host.tasks_left is None:
        return Finding("processes", State.OK, "there is no limit on processes and threads")
    each = _THREADS_OF_ITS_OWN + 2 * host.cpus
    text = f"{host.tasks_left:,} more processes and threads are allowed ({host.tasks_limit})"
    mend = "raise it (docker run --pids-limit, ulimit -u, TasksMax= of systemd), or set OMP_NUM_THREADS=4 and "
    mend += "TOKENIZERS_PARALLELISM=false in the config's env"
    if host.tasks_left < each:
        return Finding("processes", State.FAULT, f"{text}; a worker here starts about {each}", mend)
    if host.tasks_left < 2 * workers * each:
        return Finding("processes", State.WARNING, f"{text}; the workers here start about {workers * each}", mend)
    return Finding("processes", State.OK, text)


def _check_files(host: HostReading) -> Finding:
    if host.files is None:
        return Finding("files", State.OK, "there is no limit on open files")
    text, mend = f"a process may open {host.files:,} files", "raise it: ulimit -n 4096, or LimitNOFILE= of systemd"
    if host.files < _VERY_FEW_FILES:
        return Finding("files", State.FAULT, f"{text}, too few for torch and CUDA", mend)
    if host.files < _FEW_FILES:
        return Finding("files", State.WARNING, f"{text}, perhaps too few for torch and CUDA", mend)
    return Finding("files", State.OK, text)
