"""The scenarios of the museum, one module for each."""
