"""Handles reads: pulls, held pulls and queries, and the visibility of messages."""
