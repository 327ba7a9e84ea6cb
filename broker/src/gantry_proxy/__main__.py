"""Run the proxy with `python -m gantry_proxy`."""

from gantry_proxy.main import main

if __name__ == "__main__":
    main(prog_name="gantry proxy")
