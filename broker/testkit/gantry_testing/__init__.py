"""Test doubles of ports and of whole brokers, small environments for tests, faulty brokers as programs, pytest plugins.

Never imported by the broker.
"""
