"""Run the museum of known failures; see `e2e/museum/run.py --help`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / one) for one in ("e2e/museum", "e2e/interop", "broker/tests", "operator/tests")]

from gantry_museum.cli import main

if __name__ == "__main__":
    main()
