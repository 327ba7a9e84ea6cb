"""Test doubles of the ports that inject faults, and small environments that use them. Never imported by the broker."""
