"""The commands `gantry produce`, `gantry consume` and `gantry search`."""
