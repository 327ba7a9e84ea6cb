"""Jobs on Spark: archive, audit, analytics."""
