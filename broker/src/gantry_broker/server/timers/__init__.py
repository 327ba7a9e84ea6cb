"""Timer messages of any delay: kept in the timer topic, delivered when they are due, and recalled before that."""
