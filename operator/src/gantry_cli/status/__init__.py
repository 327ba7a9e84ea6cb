"""`gantry status`: a cluster on one screen, and a broker by its status page."""
