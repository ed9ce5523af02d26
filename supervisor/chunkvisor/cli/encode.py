"""`chunkvisor encode`: one file, without a config."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkvisor.cli.parameters import set_option, show_options, stop_after_option
from chunkvisor.errors import ExitCode, Halt, config_error

if TYPE_CHECKING:
    from chunkvisor.commands.fileinplace import OneFile
    from chunkvisor.show.observer import Observer


@click.command("encode")
@click.argument("source", type=click.Path())
@click.option("--model", required=True, metavar="NAME", help="Hub id or local folder of the model.")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="The file to make, OUT.npy.")
@click.option("--column", metavar="NAME", help="Column whose text is encoded; not needed for .txt.")
@click.option("--template", metavar="TEXT", help='Text with columns in braces, such as "{title}: {body}".')
@click.option("--sql", metavar="EXPRESSION", help="SQL expression over the columns, in DuckDB's dialect.")
@click.option("--query", metavar="SELECT", help="One SELECT with an ORDER BY, where SOURCE is a DuckDB or SQLite file.")
@click.option(
    "--device",
    default="cuda",
    show_default=True,
    metavar="DEVICE",
    help="cuda, cuda:N, cpu, or several: cuda:0,cuda:1.",
)
@click.option("--dtype", metavar="NAME", help="Type of the model's weights: auto, float32, float16 or bfloat16.")
@click.option("--revision", metavar="NAME", help="Branch, tag or commit of the model on the hub.")
@click.option("--max-length", metavar="TOKENS", help="Cut longer texts; by default at the model's own limit.")
@click.option("--batch-size", metavar="N", help="Texts in a batch, at most.")
@click.option("--batch-tokens", metavar="N", help="Tokens in a batch, padding included, at most.")
@click.option("--chunk-size", metavar="N", help="Texts that one worker process encodes; equal texts count once.")
@click.option("--normalize", is_flag=True, help="Scale every vector to length 1.")
@click.option("--prompt", metavar="TEXT", help="Text to put before every text.")
@click.option("--prompt-name", metavar="NAME", help="One of the model's own prompts.")
@click.option("--encoder", metavar="MODULE:FACTORY", help="A plug-in encoder instead of sentence-transformers.")
@set_option("Any key of a config, by its dotted path.")
@click.option(
    "--workdir",
    type=click.Path(path_type=Path),
    help="Where work in progress is kept; by default OUT.npy.chunkvisor, removed at the end.",
)
@click.option("--keep", is_flag=True, help="Keep that folder when the file is complete.")
@click.option("--from-scratch", is_flag=True, help="Discard work in progress, and replace OUT.npy.")
@stop_after_option()
@show_options
def encode(
    source: str,
    out: Path,
    query: str | None,
    device: str,
    normalize: bool,
    overrides: tuple[str, ...],
    workdir: Path | None,
    keep: bool,
    from_scratch: bool,
    stop_after_s: float | None,
    quiet: bool,
    log_format: str,
    **options_given: str | None,
) -> None:
    r"""Encode the texts of one file, SOURCE, into OUT.npy.

    Run the same command again to continue after a stop or a kill. OUT.json, beside OUT.npy, names the model, its
    revision, the versions, and the rows that have no vector.

    \b
    Example: chunkvisor encode articles.csv --column title --model Qodo/Qodo-Embed-1-1.5B -o titles.npy
    """
    from chunkvisor.cli.again import typed
    from chunkvisor.commands.fileinplace import OUTPUT, OneFile, state_beside
    from chunkvisor.config.load import in_sections
    from chunkvisor.show.lines import shown

    if out.suffix != ".npy":
        raise click.UsageError(f"-o {out}: the name must end in .npy")
    # Only what was given: the config knows the defaults, and says what is wrong.
    given = {name: value for name, value in options_given.items() if value is not None}
    text = {name: given[name] for name in ("column", "template", "sql") if name in given}
    values: dict[str, Any] = {
        **in_sections({**given, "name": given["model"], "normalize": normalize}),
        "chunk": {"size": given["chunk_size"]} if "chunk_size" in given else {},
        "device": device.split(",") if "," in device else device,
        "outputs": {OUTPUT: {"source": {"database": source, "query": query} if query else source, **text}},
    }
    out = out.absolute()
    place = workdir.absolute() if workdir else state_beside(out)
    with shown(quiet, log_format) as observer:
        if not text:
            _require_text(source, query)
        wanted = OneFile(values, out, place, Path.cwd(), overrides, keep, from_scratch, stop_after_s, typed())
        code = _make(wanted, observer, in_words=log_format == "text")
    if code is not ExitCode.COMPLETE:
        sys.exit(int(code))


def _make(wanted: "OneFile", observer: "Observer", *, in_words: bool) -> ExitCode:
    """Make the file; where that does not end well, say how to go on. Raises Halt."""
    from chunkvisor.cli.again import tell_how_to_go_on
    from chunkvisor.commands.onefile import encode
    from chunkvisor.show.lines import Afterwards
    from chunkvisor.show.observer import Observers
    from chunkvisor.store.layout import Layout

    afterwards = Afterwards(observer, Layout(wanted.workdir))
    try:
        return encode(wanted, Observers(observer, afterwards))
    except Halt as halt:
        if in_words:
            tell_how_to_go_on(afterwards, halt, wanted.workdir, of_config=False)
        raise


def _require_text(source: str, query: str | None) -> None:
    """Raises Halt (78), naming the columns, unless every file is plain text, which has one column."""
    import tempfile

    from chunkvisor.ingest.child import columns_in_words
    from chunkvisor.ingest.sources import Format, resolve

    files = [file for file in resolve([source], query) if file.format is not Format.TXT]
    if files:
        columns = ""
        if files[0].address is None:  # elsewhere, it would have to be fetched whole
            with tempfile.TemporaryDirectory(prefix="chunkvisor-") as scratch:
                columns = columns_in_words(files[0], Path(scratch))
        raise config_error(
            f"which column of {files[0].address or files[0].path} is to be encoded?",
            remedy=f"add --column, --template or --sql. {columns}".rstrip(),
        )
