"""`gantry group`: consumer groups, how far they are, who is in them, and moving and resending."""
