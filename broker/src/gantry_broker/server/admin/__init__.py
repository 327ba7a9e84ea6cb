"""Administration and upkeep: topics, accounts, status, retention and the scrubber."""
