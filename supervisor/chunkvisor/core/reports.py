"""Reports failures and what follows from them, as events and as the words of a run's end."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from chunkvisor import messages
from chunkvisor.config.choices import OnBadRow
from chunkvisor.config.model import RecoveryConfig
from chunkvisor.core import policy
from chunkvisor.core.attempt import RunningAttempt
from chunkvisor.core.instructions import Ending, LowerLimits, ReportFailure, ReportSplit
from chunkvisor.core.output import OutputRun
from chunkvisor.devices.gpu import CPU, advised_dtype, weakest
from chunkvisor.devices.handles import DeviceHandles
from chunkvisor.errors import Halt, StopReason
from chunkvisor.events import event
from chunkvisor.judge import Verdict
from chunkvisor.units import counted, human_time
from chunkvisor_worker.contract.exits import Outcome


class Reports:
    """Reports for people and the journal, of one run."""

    def __init__(
        self,
        outputs: Sequence[OutputRun],
        handles: DeviceHandles,
        recovery: RecoveryConfig,
        emit: event.Emit,
    ) -> None:
        self._outputs = outputs
        self._handles = handles
        self._recovery = recovery
        self._emit = emit
        self.given_up: list[messages.GivenUp] = []

    def failure(self, told: ReportFailure, attempt: RunningAttempt | None) -> None:
        """Report that an attempt has failed, and what follows."""
        task = told.task
        verdict = told.verdict
        step = told.step
        run = self._outputs[task.output]
        output = run.name
        chunk = task.chunk
        # If no worker could be started, the logs are those of earlier attempts at the chunk.
        log = attempt.folder.find_log() if attempt else run.newest_log(chunk)
        kind = event.PartFailed if task.bisecting else event.AttemptFailed
        failed = (event.AttemptInterrupted if verdict.asked_for else kind)(
            output,
            chunk,
            attempt.folder.spec.attempt if attempt else 0,
            verdict.outcome,
            verdict.reason,
            start=task.texts[0],
            stop=task.texts[-1] + 1,
            rule=verdict.rule,
            phase=str(verdict.phase or ""),
            log=str(log or ""),
            then=what_follows(step, verdict) if step else "",
            rows=run.which_rows(told.in_flight),
        )
        self._emit(failed)
        if isinstance(step, policy.GiveUp):
            self.given_up.append(messages.GivenUp(output, chunk, verdict, log))
            self._emit(event.ChunkSetAside(output, chunk, verdict.reason))

    def split(self, told: ReportSplit) -> None:
        """Report into which pieces texts are taken apart, and which rows are suspected."""
        output = self._outputs[told.task.output]
        left = sorted(itertools.chain(*(piece.texts for piece in told.pieces)))
        suspects = list(told.pieces[0].texts) if told.how is policy.How.SUSPECTS else left
        rows = output.which_rows(suspects)
        task = told.task
        self._emit(event.ChunkSplit(output.name, task.chunk, len(left), rows, again=task.bisecting))

    def lower_limits(self, told: LowerLimits) -> None:
        """Report that batches get smaller."""
        # The kind is named only if there are several.
        several = len({handle.device.model for handle in self._handles.alive}) > 1
        on = f" on {told.kind}" if several else ""
        self._emit(event.LimitsLowered(told.limit.rows, told.limit.tokens, on))

    def halt_of(
        self, ending: Ending, attempt: RunningAttempt | None, *, dropped: bool = False
    ) -> Halt:
        """Put the end of the run, or of a device that is `dropped`, into words."""
        output = self._outputs[ending.task.output if ending.task else 0]
        halt = self._put_into_words(ending, output, dropped=dropped)
        facts = output.ledger.facts
        if attempt:
            halt.log = attempt.folder.find_log()
            facts = facts or attempt.folder.facts_of_batches()
        if halt.outcome == Outcome.BAD_OUTPUT and facts and facts.dtype:
            devices = [handle.device for handle in self._handles.alive]
            better = advised_dtype(None, weakest(devices) or CPU)
            messages.name_dtype(halt, output.job.model.name, facts.dtype, better)
        return halt

    def _put_into_words(self, ending: Ending, output: OutputRun, *, dropped: bool) -> Halt:
        task = ending.task
        verdict = ending.verdict
        if ending.why is StopReason.ALL_BAD:
            last = next(reversed(output.ledger.bad_texts()), None)
            return messages.all_texts_bad(output.name, last)
        assert verdict, ending
        if ending.why is StopReason.BAD_ROWS and task:
            count = len(task.texts) + sum(each.bad_count for each in self._outputs)
            fails = self._recovery.on_bad_row is OnBadRow.FAIL
            most = None if fails else self._recovery.max_bad_rows
            _, where = output.place_of(task.texts[-1])
            if verdict.bad_rows:
                share = f"{len(task.texts):,} of the {output.ledger.plan.size(task.chunk):,} texts"
                reason = f"{share} of chunk {task.chunk} have bad vectors: {verdict.reason}"
                verdict = replace(verdict, reason=reason)
            return messages.too_many_bad_texts(output.name, where, count, verdict, most)
        device = str(self._handles[ending.device]) if ending.device is not None else "this machine"
        at = output.name, task.chunk if task else 0, output.texts
        return messages.halt_in_words(ending.why, ending.code, verdict, at, device, dropped=dropped)


def what_follows(step: policy.Step, verdict: Verdict) -> str:
    """Say what the run does next, in a few words; empty if the next event says it better."""
    match step:
        case policy.Retry(limit=limit) if limit:
            rows, tokens = limit
            most = counted(rows, "row") if tokens is None else counted(tokens, "token")
            return f"retrying with batches of at most {most}"
        case policy.Retry(delay_s=delay_s, counts=counts):
            soon = f" in {human_time(delay_s)}" if delay_s >= 1 else ""
            if counts is policy.Repeated.START:
                return f"starting another worker{soon}"
            if step.charge and verdict.outcome is Outcome.DEVICE_FAULT:
                soon = f"{soon}, with CUDA_LAUNCH_BLOCKING=1 so that the log names the place"
            return f"retrying{soon}"
        case policy.Split(how=how):
            return how.value
    return ""
