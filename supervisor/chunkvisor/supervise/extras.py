"""Refuses a config that asks for what is not installed, or for notices that nobody can send."""

from importlib.util import find_spec

from chunkvisor.config.choices import EngineKind, FinalFormat
from chunkvisor.config.model import Config
from chunkvisor.errors import config_error
from chunkvisor.show.metrics import is_textfile
from chunkvisor.show.notices import not_understood
from chunkvisor.store.disk import check_target
from chunkvisor.store.layout import Layout


def require_extras(config: Config) -> None:
    """Raises Halt (78) where a key cannot do what it says."""
    if (textfile := config.metrics.textfile) is not None:
        if not textfile.parent.is_dir():
            raise config_error(
                f"metrics.textfile: there is no folder {textfile.parent}",
                remedy="make the folder, or name the one that node_exporter reads (--collector.textfile.directory)",
            )
        check_target(textfile, "metrics.textfile", is_textfile)
        if Layout(config.workdir).owns(textfile):
            raise config_error(
                f"metrics.textfile: {textfile} is a place of the workdir's own",
                remedy="name a file in another folder, such as the one that node_exporter reads",
            )
    if config.engine.kind is EngineKind.RAY:
        _require("engine.kind: ray", "ray", "ray")
    for name, output in config.outputs.items():
        if output.format is not FinalFormat.NPY:
            from chunkvisor.assemble.formats import FORMATS  # numpy with it, which has time until the model loads

            form = FORMATS[output.format]
            if form.package is not None:
                _require(f"outputs.{name}.format: {output.format}", form.package, form.extra)
    if config.notify:
        _require("notify", "apprise", "notify")
        if wrong := not_understood([url.get_secret_value() for url in config.notify]):
            places = ", ".join(f"notify[{number}]" for number in wrong)
            raise config_error(
                f"{places}: apprise does not understand this address",
                remedy="see apprise's list of services for its form; try it out with: apprise -b test ADDRESS",
            )


def _require(key: str, package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise config_error(
            f"the key {key} needs the package {package}, which is not installed",
            remedy=f"pip install 'chunkvisor[{extra}]', or remove the key",
        )
