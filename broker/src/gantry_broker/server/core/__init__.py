"""What every part of the server shares: tables, settings, gates and counters, and the types of handlers."""
