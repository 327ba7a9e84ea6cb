"""Handles requests about consumer groups: heartbeats, members, offsets, progress and resets."""
