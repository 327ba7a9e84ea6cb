"""Run the museum of known failures; see `e2e/museum/run_museum.py --help`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "e2e/interop"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "broker/tests"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "operator/tests"))

from gantry_museum.cli import main

if __name__ == "__main__":
    main()
