"""Topics as Parquet files, each message once: the data source, the one writer, compaction, verify and restore."""
