"""Topics as Parquet files, each message exactly once: data source, writer, compaction, verification and restore."""
