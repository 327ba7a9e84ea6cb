"""`gantry group`: consumer groups: their progress and members, resetting offsets, and resending dead letters."""
