"""Histories: what clients of a group of brokers asked for, were told and were shown, and whether promises were kept."""
