"""The section `outputs`: one final file each, and the files that it has in the workdir."""

import re
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from chunkvisor.config import paths, values
from chunkvisor.config.choices import FinalDtype, FinalFormat
from chunkvisor.config.sections import EncodeConfig, Section
from chunkvisor.config.sentences import expected, refused

REPORT = "report.html"
"""Stands in the workdir next to the final files, so that no final file may have this name."""

_TEXT_FILE = re.compile(r"\.txt(\.gz|\.zst)?$", re.IGNORECASE)


def distinct_names(outputs: dict[str, "OutputConfig"]) -> dict[str, "OutputConfig"]:
    """The outputs, where each has files of its own; else raises what pydantic takes for a wrong value."""
    seen: dict[str, str] = {}
    for name in outputs:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise refused(f"{other} and {name} would be the same file where letter case does not count; rename one")
    if not outputs:
        raise refused("at least one output is needed")
    owners = {REPORT: "chunkvisor itself"}
    for name, output in outputs.items():
        for file in files_of(name, output):
            if (owner := owners.setdefault(file.casefold(), f"output {name}")) != f"output {name}":
                raise refused(f"{name} would need the name {file} in the workdir, which {owner} has; rename it")
    return outputs


def files_of(name: str, output: "OutputConfig") -> list[str]:
    """What the output has in the workdir itself, see `store.layout`."""
    files = [f"{name}.json", f"{name}.quarantined.jsonl", f"{name}.truncated.jsonl"]
    files += [f"{name}.{output.format}" if output.shards is None else name]
    files += [f"{name}.ranges.npy"] * (output.dtype is FinalDtype.INT8)
    carries = output.format is FinalFormat.NPY and (output.columns or output.where is not None)
    return files + [f"{name}.rows.parquet"] * bool(carries)


class OutputChunkConfig(Section):
    """`outputs.*.chunk`: overrides `chunk.size` for one output."""

    size: values.PositiveAutoOrNull = None
    """Distinct texts in a chunk of this output; null = chunk.size."""


class OutputConfig(Section):
    """`outputs.*`: one final file; row i of it is row i of its source."""

    source: paths.Sources
    """File, glob or list of them, here or at s3://, hf:// and other addresses: .csv .tsv .jsonl .ndjson .txt, plain or
    .gz or .zst; .parquet."""
    template: Annotated[values.Name | None, expected("a template: text with columns in braces", text=True)] = None
    """Text with columns in braces, as in "Summary: {title}"; NULL is filled in as empty text."""
    sql: Annotated[values.Name | None, expected("an SQL expression over the columns", text=True)] = None
    """SQL expression over the columns, in DuckDB's dialect."""
    # After the other two, so that its validator sees them.
    column: Annotated[values.Name | None, expected("the name of a column", text=True)] = Field(
        default=None, validate_default=True
    )
    """Column whose text is encoded; a .txt source has one, called text."""
    skip_blank: values.Flag = False
    """true = blank lines of a .txt source do not count as rows."""
    where: Annotated[values.Name | None, expected("an SQL condition over the columns, or null", text=True)] = None
    """SQL condition over the columns; only rows for which it holds are in the output, numbered from 0."""
    columns: values.Columns = ()
    """Columns that are carried along: in parquet next to the vector, with npy in NAME.rows.parquet."""
    shards: values.Shards = None
    """Number of files over which the rows are spread, in a folder of the output's name; null = one file."""
    format: Annotated[FinalFormat, expected('"npy" or "parquet"')] = FinalFormat.NPY
    """Of the final file: npy = an array; parquet = a table with the columns row and vector (extra `parquet`)."""
    dtype: Annotated[FinalDtype, expected("float32, float16, int8 or ubinary")] = FinalDtype.FLOAT32
    """Of the numbers in the final file; int8 = 256 steps over the range of each dimension, ubinary = one bit for
    each."""
    encode: EncodeConfig = EncodeConfig()
    """Overrides of encode.* for this output."""
    chunk: OutputChunkConfig = OutputChunkConfig()
    """Override of chunk.size for this output."""

    @property
    def template_note(self) -> str:
        """What is probably not meant in the template; empty where all seems to be."""
        found = next((each for each in (r"\n", r"\t") if each in (self.template or "")), "")
        if not found:
            return ""
        return (
            f"the template has a backslash and the letter {found[1]}, which stand in every text as they are. If a line "
            f'break or a tab is meant: in YAML, double quotes: "{{title}}\\n{{body}}"; in a shell: '
            "$'{title}\\n{body}'"
        )

    @field_validator("column")
    @classmethod
    def _one_text(cls, column: str | None, info: ValidationInfo) -> str | None:
        if not {"source", "template", "sql"} <= info.data.keys():
            return column  # one of them is wrong itself, and says so
        others = {name: info.data[name] for name in ("template", "sql")}
        given = [name for name, value in {"column": column, **others}.items() if value is not None]
        source = info.data["source"]
        if not given and all(map(_TEXT_FILE.search, source)):
            return "text"
        if not given:
            raise refused("which text is to be encoded? One of column, template and sql is needed", of_section=True)
        if len(given) > 1:
            raise refused(f"{' and '.join(given)} are given; keep one of them", of_section=True)
        return column
