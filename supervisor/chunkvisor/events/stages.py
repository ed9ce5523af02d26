"""What a run is doing, and from which event on."""

from chunkvisor.events import attempt as of_attempt
from chunkvisor.events import device as of_device
from chunkvisor.events import model as of_model
from chunkvisor.events import output as of_output
from chunkvisor.events import run as of_run
from chunkvisor.events.event import Event

STARTING = "starting the first workers"

COMPUTING = "computing"

STOPPING = "stopping: the chunks under way are finished or saved first"

STAGES: dict[type[Event], str] = {
    of_device.LookingForGpus: "asking nvidia-smi for the GPUs",
    of_device.CheckingDevice: "asking nvidia-smi how {0.device} is",
    of_device.DevicesChecked: STARTING,
    of_model.Resolving: "asking the model hub for {0.model}",
    of_model.CheckingModel: "reading the files of the model",
    of_run.WorkPlanned: STARTING,
    of_output.Staging: "reading the source of {0.output}",
    of_device.TemplateStarted: "loading the model, once for all workers",
    of_attempt.Go: COMPUTING,
    of_output.Assembling: "joining the chunks of {0.output}",
    of_output.OutputComplete: COMPUTING,
    of_run.Draining: STOPPING,
    of_run.RunEnded: "finished",
    of_run.Halted: "ended",
}
"""What a run is doing from that event on."""

NO_WORK = (
    *(of_run.Invoked, of_run.OrphansEnded, of_run.RunStarted, of_model.Resolving, of_model.CheckingModel),
    *(of_output.OutputAlreadyComplete, of_run.RunEnded, of_run.Halted),
    *(of_device.LookingForGpus, of_device.GpusGuessed, of_device.CheckingDevice, of_device.DevicesChecked),
)
"""All that a run tells which finds everything done, or cannot begin."""
