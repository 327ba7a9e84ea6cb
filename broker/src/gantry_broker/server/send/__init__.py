"""Handles sends, from the frame on a connection to the record in the log and the answer to the producer."""
