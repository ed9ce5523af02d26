"""Findings on memory, disk, and limits of processes and files, and on the Ray cluster. Pure."""

from collections.abc import Iterator, Sequence

from chunkvisor.commands.doctor.finding import Blame, Finding, State
from chunkvisor.commands.doctor.readings import FolderReading, HostReading, JobReading, Readings, Wanted, Whereabouts
from chunkvisor.ingest.sourcesize import SourceSize
from chunkvisor.store.disk import RESERVE_BYTES, need_bytes
from chunkvisor.units import counted, human_bytes

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
