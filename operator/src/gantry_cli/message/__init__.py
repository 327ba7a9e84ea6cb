"""The commands about one stored message."""
