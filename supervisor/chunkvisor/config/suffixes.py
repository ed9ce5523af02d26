"""By which suffix a source is known; in a module of its own, since importing this costs nothing."""

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".txt": "txt",
}
"""Values of `ingest.sources.Format`."""

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
"""Values of `ingest.sources.Compression`."""
