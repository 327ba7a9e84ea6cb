"""Entry point of ``python -m gantry_operator``."""

from gantry_operator.main import main

main()
