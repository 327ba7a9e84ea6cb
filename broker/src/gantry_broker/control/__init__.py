"""Orders to this broker, over a Unix socket that only its own user can open."""
