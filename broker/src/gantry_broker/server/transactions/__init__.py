"""Messages that are stored at once and shown when their producer says so, or never."""
