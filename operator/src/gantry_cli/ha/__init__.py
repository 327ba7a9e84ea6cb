"""`gantry ha`: a replicated group of brokers, looked at and ordered over their own addresses."""
