"""The parts that the whole server shares: tables, settings, gates, counters, and the types of handlers."""
