"""The observers that every run has, however it was started: what they make lies in its folder or goes elsewhere.

It never shows anything at the terminal: who started the run decides that.
"""

import contextlib

from chunkvisor.config.model import Config
from chunkvisor.observe.observer import Guarded, Observer
from chunkvisor.store.layout import InvocationFiles, Layout


def standing_observers(config: Config, layout: Layout, files: InvocationFiles | None, run_id: str) -> list[Observer]:
    """Each of them guarded; `files` is None where the disk did not let the invocation have a folder."""
    from chunkvisor.observe.reporter import Reporter

    made: list[Observer] = []
    if files is not None:
        from chunkvisor.observe.record import Record
        from chunkvisor.observe.sensors import Sensors

        with contextlib.suppress(OSError):  # not even the log could be opened
            made.append(Guarded(Record(config, layout, files, run_id)))
        made.append(Guarded(Sensors(files)))
    if config.metrics.textfile is not None:
        from chunkvisor.observe.metrics import Metrics

        made.append(Guarded(Metrics(config.metrics.textfile)))
    # After those whose files it reads.
    made.append(Guarded(Reporter(layout)))
    if config.notify:
        from chunkvisor.observe.notices import Notices

        # After the report, which the notice may lead a person to.
        urls = [url.get_secret_value() for url in config.notify]
        made.append(Guarded(Notices(urls, layout, files)))
    return made
