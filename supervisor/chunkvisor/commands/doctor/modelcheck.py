"""Findings on the config's model: whether it is here, and a worker makes sound vectors with it. Pure."""

from collections.abc import Iterator

from chunkvisor.commands.doctor.finding import Blame, Finding, State
from chunkvisor.commands.doctor.gpus import before_a_run
from chunkvisor.commands.doctor.machine import check_folder
from chunkvisor.commands.doctor.readings import HubReading, JobReading, Readings, SampleReading, Wanted, Whereabouts
from chunkvisor.config.choices import Dtype
from chunkvisor.devices.dtypes import Card, advised_dtype, less_memory, unfit_dtype
from chunkvisor.devices.gpu import SLOW_BFLOAT16
from chunkvisor.engine.modelsource import NAME_REMEDY
from chunkvisor.engine.trial import wrong_vectors
from chunkvisor.errors import ExitCode
from chunkvisor.units import counted, human_bytes
from chunkvisor_worker.contract.exits import Outcome
from chunkvisor_worker.contract.messages import LinearKernel

_ROUNDING = 1e-3
"""Two vectors of one text that differ by less, relative to their largest component, differ by rounding: half
precision has about three digits."""
_OTHER_WEIGHTS = 0.01
"""Vectors of two processes that loaded the same weights differ by less: both compute by the same means."""
_TOKENIZER, _WRONG_MODEL = "tokenizer-mismatch", "wrong-model"  # rules of the taxonomy


def check_model(readings: Readings) -> Iterator[Finding]:
    """Findings on the hub; with a config `model`, `dtype`, `tokenizer`, `encoding`, `linear-layers`."""
    job = readings.job
    if job is None or job.whereabouts in (Whereabouts.CACHED, Whereabouts.HUB):
        yield from _check_hub(readings.hub, job)
    if job is None:
        return
    yield _check_whereabouts(job, readings.hub)
    for fault in job.findings.faults:
        meaning = f"{fault.what}: {fault.why}" if fault.why else fault.what
        yield Finding("right-vectors", State.FAULT, meaning, fault.remedy, Blame.CONFIG)
    for what, mend in job.findings.warnings:
        yield Finding("right-vectors", State.WARNING, what, mend)
    if job.whereabouts in (Whereabouts.NOWHERE, Whereabouts.HUB):
        return
    on_cpu = readings.wanted is Wanted.CPU and job.whereabouts is not Whereabouts.PLUGIN
    if on_cpu and job.dtype == Dtype.BFLOAT16 and not job.cpu_has_bfloat16:
        yield Finding("dtype", State.WARNING, SLOW_BFLOAT16, "set model.dtype to float32")
    if readings.wanted is Wanted.CUDA and job.dtype is not None:
        yield from _check_dtype(readings, job)
    if job.busy_pid is not None:
        meaning = f"a run is at work in the workdir (pid {job.busy_pid}): no sample is encoded beside it"
        yield Finding("encoding", State.NOTE, meaning)
    elif not job.samples:
        yield Finding("encoding", State.NOTE, "no sample was encoded: what stands above is in the way")
    if job.expect_problem is not None:
        what, mend = job.expect_problem
        yield Finding("expect", State.FAULT, what, mend, Blame.CONFIG)
    for sample in job.samples:
        yield from _check_sample(sample, job)
    yield from _check_expected(job)


def _check_dtype(readings: Readings, job: JobReading) -> Iterator[Finding]:
    """Whether each GPU suits the dtype; torch tells of all of them, whatever nvidia-smi does."""
    gpus = readings.probe.report.gpus if readings.probe.report is not None else ()
    for card in dict.fromkeys(Card(gpu.name, gpu.capability) for gpu in gpus):
        advice = advised_dtype(job.model_type, card)
        if (unfit := unfit_dtype(job.dtype, job.model_type, card)) is not None:
            yield Finding("dtype", State.WARNING, *unfit)
        elif job.dtype == advice.dtype:
            yield Finding("dtype", State.OK, f"the model computes in {job.dtype}, which suits {card}: {advice.why}")
        else:
            other = less_memory(job.dtype, job.model_type, card).rstrip(".")
            meaning = f"the model computes in {job.dtype}" + (f". {other}" if other else f", which {card} has")
            yield Finding("dtype", State.OK, meaning)


def _check_hub(hub: HubReading, job: JobReading | None) -> Iterator[Finding]:
    needed = job is not None and job.whereabouts is Whereabouts.HUB
    bad = check_folder("hub-cache", "the cache of the model hub", hub.cache)
    if bad is not None and needed:
        yield Finding("hub-cache", bad.state, bad.meaning, f"{bad.mend}: HF_HOME names it")
    elif bad is not None:
        yield Finding("hub-cache", State.NOTE, f"{bad.meaning}: no model can be downloaded")
    elif hub.cache.free_bytes is not None:
        text = f"models are downloaded to {hub.cache.path}, which has {human_bytes(hub.cache.free_bytes)} free"
        yield Finding("hub-cache", State.OK, text)
    if hub.has_token:
        yield Finding("hub-token", State.OK, "an access token of the hub is set")
    else:
        mend = "private and gated models need one: set HF_TOKEN, or run: hf auth login"
        yield Finding("hub-token", State.NOTE, "no access token of the hub is set", mend)


def _check_whereabouts(job: JobReading, hub: HubReading) -> Finding:
    check, size = "model", f", {human_bytes(job.weights_bytes)} of weights" if job.weights_bytes else ""
    fetch = f"hf download {job.model}"
    match job.whereabouts:
        case Whereabouts.PLUGIN:
            return Finding(check, State.OK, f"{job.model!r} is handed to the plug-in encoder as it stands")
        case Whereabouts.FOLDER:
            return Finding(check, State.OK, f"{job.model} is a local folder{size}")
        case Whereabouts.CACHED:
            return Finding(check, State.OK, f"{job.model} is in the local cache{size}")
        case Whereabouts.HUB if hub.offline:
            meaning = f"{job.model} is not in the local cache, and HF_HUB_OFFLINE forbids to download it"
            mend = f"unset HF_HUB_OFFLINE for the first run, or fetch it before, where there is a network: {fetch}"
            return Finding(check, State.FAULT, meaning, mend, Blame.CONFIG)
        case Whereabouts.HUB if job.no_download is not None:
            verdict = job.no_download
            reached = verdict.outcome is not Outcome.HUB
            meaning = f"{job.model} is not in the local cache, and the hub does not give it: {verdict.reason}"
            mend = before_a_run(verdict.remedy) or f"check the network, or fetch it where there is one: {fetch}"
            return Finding(check, State.FAULT, meaning, mend, Blame.CONFIG if reached else Blame.MACHINE)
        case Whereabouts.HUB:
            meaning = f"{job.model} is not in the local cache: the first run downloads it"
            return Finding(check, State.NOTE, meaning, f"to have it before, and checked here: {fetch}")
        case Whereabouts.NOWHERE:
            return Finding(check, State.FAULT, job.problem, NAME_REMEDY, Blame.CONFIG)


def _check_sample(sample: SampleReading, job: JobReading) -> Iterator[Finding]:
    verdict, who = sample.verdict, f" ({sample.where})" if sample.where else ""
    is_plugin = job.whereabouts is Whereabouts.PLUGIN
    if verdict.rule == _WRONG_MODEL:
        mend = before_a_run(verdict.remedy) or "do as it says"
        yield Finding("right-vectors", State.FAULT, f"{verdict.reason}{who}", mend, Blame.CONFIG)
        return
    if verdict.rule == _TOKENIZER:
        mend = before_a_run(verdict.remedy) or "check model.name: tokenizer and model do not belong together"
        yield Finding("tokenizer", State.FAULT, f"{verdict.reason}{who}", mend, Blame.CONFIG)
        return
    if verdict.outcome is not Outcome.COMMITTED:
        text = f"a worker got three short texts{who} and failed: {verdict.outcome}: {verdict.reason}"
        if sample.log_line:
            text += f"\nlast line of its log: {sample.log_line}"
        mend = before_a_run(verdict.remedy)
        mend = mend or (
            "correct the plug-in encoder" if is_plugin else "update torch and the packages that the log names"
        )
        yield Finding("encoding", State.FAULT, text, mend, _blame(sample, is_plugin=is_plugin))
        return
    if not is_plugin:
        yield Finding("tokenizer", State.OK, f"the tokenizer fits the model and knows ordinary words{who}")
    blame = Blame.CONFIG if is_plugin else Blame.MACHINE
    if sample.difference > _ROUNDING:
        text = f"the same text, encoded twice{who}, gives vectors that differ by {sample.difference:.2g} of their size"
        mend = "have the GPU checked"
        if is_plugin:
            mend = "make the plug-in encoder deterministic: eval() on its model, no dropout"
        yield Finding("encoding", State.FAULT, text, mend, blame)
    elif sample.elsewhere > _OTHER_WEIGHTS:
        yield _other_weights(sample, who, is_plugin=is_plugin)
    elif not sample.tells_apart:
        text = f"two different texts get the same vector{who}: the texts do not reach the model"
        mend = "check the plug-in encoder" if is_plugin else "download the model again, with all its tokenizer files"
        yield Finding("encoding", State.WARNING, text, mend, Blame.CONFIG)
    else:
        digits = "to the last digit" if sample.difference == 0 else "up to rounding"
        text = f"a text encoded twice gives the same vector of {sample.dimension} dimensions, {digits}{who}"
        yield Finding("encoding", State.OK, text)
    if sample.linear is not None:
        text = f"workers compute linear layers, most of a model's work, by {_kernel(sample.linear)}{who}"
        yield Finding("linear-layers", State.OK, text)


def _other_weights(sample: SampleReading, who: str, *, is_plugin: bool) -> Finding:
    text = f"two processes that load the model give the same text vectors that differ by {sample.elsewhere:.2g} of "
    text += f"their size{who}: each has other weights"
    if is_plugin:
        mend = "have the plug-in encoder load its weights from a file, and set what is random in it by a fixed seed"
        return Finding("encoding", State.FAULT, text, mend, Blame.CONFIG)
    text += "".join(f"\nwhile it loads: {note}" for note in sample.notes[:3])
    mend = "weights that the folder lacks are drawn at random by each process, and buffers that the model's code does "
    mend += "not save are left empty by transformers 5: download the folder again and compare its files with the "
    mend += "model's page, or install the version of transformers that the page names"
    return Finding("encoding", State.FAULT, text, mend, Blame.CONFIG)


def _check_expected(job: JobReading) -> Iterator[Finding]:
    if job.expected is None or not job.samples:
        return
    path, count = job.expected
    if wrong := next((sample.unexpected for sample in job.samples if sample.unexpected), ""):
        yield Finding("expect", State.FAULT, wrong, wrong_vectors(wrong, job.model).remedy, Blame.CONFIG)
    elif all(sample.verdict.outcome is Outcome.COMMITTED for sample in job.samples):
        yield Finding("expect", State.OK, f"the model gives the vectors of {counted(count, 'text')} in {path}")


def _kernel(linear: LinearKernel) -> str:
    packed = linear.name == "onednn"
    by = "the library oneDNN" if packed else "torch's own code"
    if not linear.time_ratio:
        return by
    share = f"{100 * linear.time_ratio:.0f} %"
    why = f"it takes {share} of the time of torch's own code" if packed else f"oneDNN would take {share} of its time"
    return f"{by}, the faster one here: {why}"


def _blame(sample: SampleReading, *, is_plugin: bool) -> Blame:
    verdict = sample.verdict
    if verdict.exit_code is not None:
        return Blame.CONFIG if verdict.exit_code == ExitCode.CONFIG else Blame.MACHINE
    # What a plug-in raises, or vectors that are none, no mend of the machine will change.
    config = verdict.outcome in (Outcome.BAD_OUTPUT, Outcome.BAD_INPUT, Outcome.SETUP)
    return Blame.CONFIG if config or (is_plugin and verdict.outcome is Outcome.CRASHED) else Blame.MACHINE
