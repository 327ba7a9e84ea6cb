"""Run the name server with `python -m gantry_nameserver`."""

from gantry_nameserver.main import main

if __name__ == "__main__":
    main(prog_name="gantry nameserver")
