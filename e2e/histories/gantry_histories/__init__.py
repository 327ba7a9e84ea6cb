"""Histories of client operations against a broker group, and a checker that verifies the group's guarantees against
them.
"""
