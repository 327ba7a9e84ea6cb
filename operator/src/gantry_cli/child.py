"""Run a server as a child process that does not outlive its parent.

`python -m gantry_cli.child PARENT MODULE ARGUMENTS...` asks the kernel to send it SIGTERM when the parent dies, checks
that the parent is still alive, and executes `python -m MODULE ARGUMENTS...`. Without it, a `kill -9` of `gantry up`
would leave a broker behind that holds the ports.
"""

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""The option of ``prctl`` that sets the signal at the parent's death."""


def main() -> None:
    parent, module, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(f"gantry: the supervisor process {parent} has exited")
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


if __name__ == "__main__":
    main()
