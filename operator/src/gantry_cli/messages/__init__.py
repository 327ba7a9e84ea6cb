"""`gantry produce` and `gantry consume`: messages in and out."""
