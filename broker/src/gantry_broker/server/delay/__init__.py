"""Delayed messages, stored by level and delivered to their own topics when they are due."""
