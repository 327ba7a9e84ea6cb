"""The three ways to the records of a broker: its files, ranges from its sidecar, and pulls."""
