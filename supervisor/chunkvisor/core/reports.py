"""What the loop tells people and the journal about failures, waits and ends."""

from collections.abc import Sequence

from chunkvisor import messages
from chunkvisor.config.choices import OnBadRow
from chunkvisor.config.model import RecoveryConfig
from chunkvisor.core import policy
from chunkvisor.core.attempt import RunningAttempt
from chunkvisor.core.instructions import Ending, LowerLimits, TellFailure, TellSplit
from chunkvisor.core.output import OutputRun
from chunkvisor.devices.handles import DeviceHandles
from chunkvisor.errors import Halt, StopReason
from chunkvisor.events import event
from chunkvisor.judge import Verdict
from chunkvisor.units import counted, human_time
from chunkvisor_worker.contract.exits import Outcome


class Reports:
    """Of one run."""

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

    def failure(self, told: TellFailure, slot: RunningAttempt | None) -> None:
        """Report that an attempt has failed, and what follows."""
        task = told.task
        verdict = told.verdict
        step = told.step
        run = self._outputs[task.output]
        # One that could not be started: the folder of the chunk has the logs of those before.
        output, chunk, attempt = slot.names if slot is not None else (run.name, task.chunk, 0)
        log = slot.attempt.last_log() if slot is not None else run.last_log(task.chunk)
        kind = (
            event.AttemptInterrupted
            if verdict.asked_for
            else event.PartFailed
            if task.bisecting
            else event.AttemptFailed
        )
        failed = kind(
            output,
            chunk,
            attempt,
            verdict.outcome,
            verdict.reason,
            start=task.texts[0],
            stop=task.texts[-1] + 1,
            rule=verdict.rule,
            phase=str(verdict.phase or ""),
            log=str(log or ""),
            then=what_follows(step, verdict) if step is not None else "",
            rows=run.which_rows(told.in_flight),
        )
        self._emit(failed)
        if isinstance(step, policy.GiveUp):
            self.given_up.append(messages.GivenUp(output, chunk, verdict, log))
            self._emit(event.ChunkSetAside(output, chunk, verdict.reason))

    def split(self, told: TellSplit) -> None:
        """Report that the texts are tried in these pieces."""
        output = self._outputs[told.task.output]
        left = sorted(text for piece in told.pieces for text in piece.texts)
        suspects = list(told.pieces[0].texts) if told.how is policy.How.SUSPECTS else left
        rows = output.which_rows(suspects)
        self._emit(
            event.ChunkSplit(
                output.name, told.task.chunk, len(left), rows, again=told.task.bisecting
            )
        )

    def lower_limits(self, told: LowerLimits) -> None:
        """Report that batches get smaller."""
        # With one kind of GPU, its name would only be noise.
        several = len({handle.device.model for handle in self._handles.alive}) > 1
        on = f" on {told.kind}" if several else ""
        self._emit(event.LimitsLowered(told.limit.rows, told.limit.tokens, on))

    def halt_of(
        self, ending: Ending, slot: RunningAttempt | None, *, dropped: bool = False
    ) -> Halt:
        """Put the end of the run, or of a device that is `dropped`, into words."""
        halt = self._in_words(ending, dropped=dropped)
        if halt.log is None and slot is not None:
            halt.log = slot.attempt.last_log()
        return halt

    def _in_words(self, ending: Ending, *, dropped: bool) -> Halt:
        task = ending.task
        verdict = ending.verdict
        output = self._outputs[task.output if task is not None else 0]
        if ending.why is StopReason.ALL_BAD:
            return messages.all_bad(output.name, output.last_bad())
        assert verdict is not None, ending
        if ending.why is StopReason.BAD_ROWS and task is not None:
            count = len(task.texts) + sum(each.bad_count for each in self._outputs)
            most = (
                None if self._recovery.on_bad_row is OnBadRow.FAIL else self._recovery.max_bad_rows
            )
            _, where = output.place_of(task.texts[-1])
            return messages.too_bad(output.name, where, count, verdict, most)
        device = str(self._handles[ending.device]) if ending.device is not None else "this machine"
        at = output.name, task.chunk if task is not None else 0, output.texts
        return messages.end_in_words(ending.why, ending.code, verdict, at, device, dropped=dropped)


def what_follows(step: policy.Step, verdict: Verdict) -> str:
    """Say what the run does next, in a few words; empty if the next event says it better."""
    match step:
        case policy.Retry(limit=limit) if limit is not None:
            most = (
                counted(limit.rows, "row")
                if limit.tokens is None
                else counted(limit.tokens, "token")
            )
            return f"retrying with batches of at most {most}"
        case policy.Retry(delay_s=delay_s):
            soon = f" in {human_time(delay_s)}" if delay_s >= 1 else ""
            if step.charge and verdict.outcome is Outcome.DEVICE_FAULT:
                return (
                    f"retrying{soon}, with CUDA_LAUNCH_BLOCKING=1 so that the log names the place"
                )
            again = step.counts is policy.Repeated.START
            return f"{'starting another worker' if again else 'retrying'}{soon}"
        case policy.Split(how=how):
            return how.value
    return ""
