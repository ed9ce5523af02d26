"""Which table an output asks for, and what an earlier run has staged of it."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from chunkvisor.config.model import Config
from chunkvisor.errors import config_error
from chunkvisor.sources.fetch import is_remote
from chunkvisor.sources.request import IngestRequest
from chunkvisor.sources.resolve import SourceFile, resolve, signature
from chunkvisor.store.identity import Staged, read_staged
from chunkvisor.store.layout import Layout, OutputLayout
from chunkvisor.store.records import DamagedError, digest_of


def request_of(config: Config, name: str, max_rows: int | None) -> IngestRequest:
    """What the output wants of its source. Raises Halt (78) where a file of the workdir's state is among that."""
    output = config.outputs[name]
    here = [source for source in output.source if not is_remote(source)]
    _refuse_state(Layout(config.workdir), name, resolve(here))
    return IngestRequest(
        sources=output.source,
        column=output.column,
        template=output.template,
        sql=output.sql,
        skip_blank=output.skip_blank,
        where=output.where,
        columns=output.columns,
        max_rows=max_rows,
        memory_limit_bytes=int(config.ingest.memory_limit),
    )


def _refuse_state(layout: Layout, name: str, files: Sequence[SourceFile]) -> None:
    """A run would write into its own source, or read what it has written."""
    if found := next((file.path for file in files if layout.owns(file.path)), None):
        raise config_error(
            f"outputs.{name}.source: {found} is a file that chunkvisor keeps in the workdir for itself",
            remedy="choose another workdir, best an empty folder, or a pattern that does not match it",
        )


def asked(request: IngestRequest) -> dict[str, Any]:
    """What the staged table depends on, but for the contents of the files. Raises Halt where a file is gone."""
    values = asdict(replace(request, memory_limit_bytes=0))
    return {"request": digest_of(values), "signature": signature(resolve(request.sources))}


def staged_before(request: IngestRequest, layout: OutputLayout) -> Staged | None:
    """What an earlier run staged of the very same request and untouched files. Raises Halt where a file is gone."""
    try:
        record = read_staged(layout)
    except DamagedError:
        return None
    return record.staged if record is not None and record.asked == asked(request) else None
