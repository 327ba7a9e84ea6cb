"""Run a Kubernetes cluster of real nodes on this machine; see `e2e/cluster/run.py --help`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gantry_cluster.cli import main

if __name__ == "__main__":
    main()
