"""Orders to this broker, from whoever may open a file that only its own user may open."""
