"""By which suffix a source is known; in a module of its own, since importing this costs nothing."""

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".txt": "txt",
}
"""Values of `sources.resolve.Format`."""

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
"""Values of `sources.resolve.Compression`."""

AS_PARQUET = (
    "Write a parquet file of it, by one line of Python, and name that file: "
    "duckdb.connect(FILE).execute(\"COPY (SELECT … ORDER BY …) TO 'rows.parquet'\") for a database, "
    "datasets.Dataset.from_file(FILE).to_parquet('rows.parquet') for an Arrow file."
)
"""What to do with a source of a kind that is not read."""
