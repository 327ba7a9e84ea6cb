"""Reads: pulls, held pulls, queries by key, and when messages become visible."""
