"""Declared schemas: typed columns that a worker decodes from the bodies of a topic, beside the raw body."""
