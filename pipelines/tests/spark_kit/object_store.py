"""An object store of its own: a server that speaks S3 and keeps objects in a folder. It can be killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Final, final

from admin_scene import wait_for

from gantry_testing.ports import free_ports
from gantry_testing.programs import object_store_program

BUCKET: Final = "archives"
KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "gantry",
    "AWS_SECRET_ACCESS_KEY": "gantry-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Environment of the processes that use the object store."""


@final
class ObjectStore:
    """An S3 server with one bucket, in a process."""

    def __init__(self, folder: Path) -> None:
        (folder / BUCKET).mkdir(parents=True)
        self.folder: Final = folder
        self.port: Final = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, prefix: str, bucket: str = BUCKET) -> str:
        """Return the address of a prefix as a destination."""
        return f"s3://{bucket}/{prefix}?endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

    def start(self) -> None:
        """Start the server on the folder, and wait until it answers."""
        program = object_store_program()
        assert program is not None, "no program of an object store: the test lacks the mark needs_object_store"
        keys = {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
        words = [str(program), "--quiet", "--port", f"127.0.0.1:{self.port}", "posix", str(self.folder)]
        with (self.folder.parent / "object-store.log").open("ab") as log:
            self._process = subprocess.Popen(words, env={**os.environ, **keys}, stdout=log, stderr=log)
        wait_for(self._answers, "the object store answers")

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, "see object-store.log"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def files(self, prefix: str) -> set[str]:
        """Return the files below a prefix, read without the server."""
        top = self.folder / BUCKET / prefix
        return {path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file()}
