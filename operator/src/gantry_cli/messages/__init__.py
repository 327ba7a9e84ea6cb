"""The commands `gantry produce` and `gantry consume`."""
