"""Run the command line with `python -m gantry_cli`."""

from gantry_cli.main import main

if __name__ == "__main__":
    main()
