"""Serves pop consumption: checkpoints, acks, redelivery, ordered consumption, and the modes of groups."""
