"""Consumer groups and clients: heartbeats, members, offsets, progress and resets."""
