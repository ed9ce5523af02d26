"""The template of the page: compiled by the first report, and kept in `__pycache__`, as Python keeps modules.

To compile it takes half a second of computing, which every run would spend at its end.
"""

import base64
import contextlib
import functools
import hashlib
import sys
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from chunkvisor.observe.report.attempts import kind_of
from chunkvisor.observe.report.bars import duration
from chunkvisor.observe.report.trouble import clean
from chunkvisor.units import human_moment


@functools.cache
def page_template() -> jinja2.Template:
    """The template; whatever is put into it is escaped."""
    loader = jinja2.PackageLoader("chunkvisor.observe.report", ".")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_BesideModules(
            str(Path(__file__).parent / "__pycache__"),
            f"page-%s.jinja-{jinja2.__version__}.{sys.implementation.cache_tag}.pyc",
        ),
    )
    environment.filters.update(duration=duration, when=human_moment, clean=clean, commas="{:,}".format, kind=kind_of)
    environment.filters["code"] = _with_code
    script, *_ = loader.get_source(environment, "search.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(
        search=Markup(script),  # noqa: S704 - ours
        search_digest=f"sha256-{digest}",
    )
    return environment.get_template("page.html.j2")


class _BesideModules(jinja2.FileSystemBytecodeCache):
    """Written where Python itself would write a compiled module, and nowhere else."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode:
            with contextlib.suppress(OSError):  # not ours to write: it is compiled again
                super().dump_bytecode(bucket)


def _with_code(text: str) -> Any:
    """What stands between backticks as code; everything is escaped."""
    parts = [escape(part) for part in str(text).split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 and number + 1 < len(parts) else part
        for number, part in enumerate(parts)
    )
