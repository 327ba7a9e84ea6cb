"""Run RocketMQ's own clients against a broker; see `e2e/interop/run.py --help`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gantry_interop.cli import main

if __name__ == "__main__":
    main()
