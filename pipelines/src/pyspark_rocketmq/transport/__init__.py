"""The three transports of a broker's records: its files, ranges from its sidecar, and pulls."""
