"""The command line: `gantry up`, `status`, `produce`, `consume`, `topic` and the rest.

It is a client: it queries clusters through `gantry_client` and starts servers as processes. Commands are imported when
they are called, so that `gantry --help` is fast.

GANTRY_SPEEDUPS is checked here, before any module that chooses its functions by it: an invalid value, or a compiled hot
path that is required and missing, ends the command with one line and exit code 2, and not with a traceback.
"""

import importlib
import sys
from typing import Final

EXIT_USAGE: Final = 2
"""The code of invalid usage, as in `gantry_cli.errors`, which cannot be imported before this check."""

try:
    importlib.import_module("gantry_speedups")
except ImportError as error:
    sys.stderr.write(f"gantry: {error}\n")
    sys.exit(EXIT_USAGE)
