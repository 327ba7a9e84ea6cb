"""The page that lists the groups that a user may read, and opens their consoles.

The page and its data come from this program; styles and shared modules are the files of the sidecar's console. Each
group gets a ``GroupConsole`` with a port of its own when it is opened first.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import mimetypes
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, final

import msgspec

from gantry_cli.console.backend import Backend, SidecarSource
from gantry_cli.console.documents import GroupsDocument, GroupSummary
from gantry_cli.console.group_console import SESSIONS_PATH, BrowserLogin, GroupConsole, answer_if_logged_in
from gantry_cli.console.http import (
    Answer,
    Request,
    SidecarUnavailable,
    content_answer,
    document_answer,
    refusal,
)
from gantry_cli.console.loopback_server import LoopbackServer
from gantry_cli.console.threads import in_thread
from gantry_cli.errors import CliError

LIST_PATH: Final = "/v1/broker-groups"
OPEN_PATH: Final = "/v1/broker-groups/open"
READ_INTERVAL_S: Final = 3.0
"""How old the list may be when a page asks for it: several open pages do not multiply the requests to the cluster."""
GROUPS_MAX: Final = 500
"""The most groups in the list: a page with more is of no use, and each has many shards."""
CONSOLES_MAX: Final = 100
"""The most consoles that are open at a time, each with a port of this machine."""
PAGE: Final = Path(__file__).parent / "page"
SHARED_FOLDERS: Final = ("css", "js")
"""The folders of the sidecar's console whose files the page uses."""

PAGE_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
     b"connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
     b"require-trusted-types-for 'script'; trusted-types 'none'"),
    (b"x-frame-options", b"DENY"),
)  # fmt: skip
"""The same policy as that of the sidecar's console."""


class GroupDirectory(Protocol):
    """Where the list of groups comes from. ``read`` blocks, and is called in threads."""

    @property
    def title(self) -> str:
        """Which cluster and namespace, or which machine."""

    def read(self) -> list[GroupSummary]:
        """Return the groups that the user may read. Raises CliError."""

    def sidecars(self, group: GroupSummary) -> SidecarSource:
        """Return the sidecars of a group of the list."""


def page_files() -> Mapping[str, bytes]:
    """Return the files of the page by their paths: the list is fixed, so no path can lead to another file."""
    spec = importlib.util.find_spec("gantry_admin")
    if spec is None or not spec.submodule_search_locations:
        raise CliError("the files of the console are not installed", "install gantry-mq again")
    shared = Path(next(iter(spec.submodule_search_locations))) / "console"
    files = {f"/{path.name}": path for path in PAGE.iterdir() if path.is_file()}
    files |= {
        f"/console/{path.relative_to(shared)}": path for name in SHARED_FOLDERS for path in (shared / name).iterdir()
    }
    files |= {"/console/icon.svg": shared / "icon.svg", "/": PAGE / "index.html"}
    return {path: file.read_bytes() for path, file in files.items()}


@final
class GroupList:
    """The newest list of groups. Owned by the event loop."""

    def __init__(self, directory: GroupDirectory) -> None:
        self._directory: Final = directory
        self._reading: Final = asyncio.Lock()
        self._read_s: float | None = None
        self._at_ms = 0
        self._fault = ""
        self._groups: list[GroupSummary] = []
        self.faults: Final[dict[str, str]] = {}
        """Why the consoles of groups could not be opened, by their ids."""

    async def refresh(self) -> None:
        """Read the list again if it is too old. Afterwards it is current, or says why not."""
        async with self._reading:
            if self._read_s is not None and time.monotonic() - self._read_s < READ_INTERVAL_S:
                return
            try:
                self._groups = sorted(await in_thread(self._directory.read), key=lambda one: (one.place, one.name))
                self._at_ms, self._fault = time.time_ns() // 1_000_000, ""
            except CliError as error:
                self._fault = error.message
            self._read_s = time.monotonic()

    def document(self) -> GroupsDocument:
        """Return the list as it was read last."""
        shown = [
            msgspec.structs.replace(one, fault=self.faults.get(one.id) or one.fault)
            for one in self._groups[:GROUPS_MAX]
        ]  # fmt: skip
        return GroupsDocument(
            title=self._directory.title, at_ms=self._at_ms, now_ms=time.time_ns() // 1_000_000, fault=self._fault,
            groups=shown, left_out=len(self._groups) - len(shown),
        )  # fmt: skip

    def find(self, identity: object) -> GroupSummary | None:
        """Return a group of the list by its id."""
        return next((one for one in self._groups if one.id == identity), None)


@final
class GroupsPage:
    """The page with all groups, and the consoles that it has opened. Owned by the event loop."""

    def __init__(self, directory: GroupDirectory, report: Callable[[str], None]) -> None:
        self._directory: Final = directory
        self._report: Final = report
        self._files: Final = page_files()
        self._login: Final = BrowserLogin()
        self._list: Final = GroupList(directory)
        self._consoles: Final[dict[str, tuple[Backend, GroupConsole]]] = {}
        self._server: Final = LoopbackServer(self._handle)

    def __repr__(self) -> str:
        return f"<GroupsPage {self._server.url} consoles={len(self._consoles)}>"

    async def start(self, port: int = 0) -> None:
        """Read the list, and listen on a port; 0 takes a free one. Raises CliError if there is no list, and OSError."""
        await self._list.refresh()
        if fault := self._list.document().fault:
            raise CliError(fault)
        await self._server.start(port)

    def new_address(self) -> str:
        """Return an address that opens the page in one browser."""
        return self._login.address(f"{self._server.url}/")

    async def close(self) -> None:
        await self._server.close()
        for _, opened in self._consoles.values():
            await opened.close()

    async def _handle(self, request: Request) -> Answer:
        content = self._files.get(request.path)
        if content is not None and request.method == "GET":
            path = "/index.html" if request.path == "/" else request.path
            return content_answer(200, mimetypes.guess_type(path)[0] or "text/plain", content, *PAGE_HEADERS)
        if (request.path, request.method) == (SESSIONS_PATH, "POST"):
            return self._login.exchange(request)
        return await answer_if_logged_in(self._login, request, self._answer)

    async def _answer(self, request: Request) -> Answer:
        """Answer a request of a browser that has logged in."""
        match request.method, request.path:
            case "GET", "/v1/broker-groups":
                await self._list.refresh()
                document = self._list.document()
                return content_answer(200, "application/json", msgspec.json.encode(document))
            case "POST", "/v1/broker-groups/open":
                return await self._open(request)
        return refusal(404, "endpoint not found")

    async def _open(self, request: Request) -> Answer:
        """Open the console of a group, and answer with an address that works once."""
        try:
            group = self._list.find(json.loads(request.body)["id"])
        except (ValueError, RecursionError, KeyError, TypeError):
            return refusal(422, "the body must be a document with the id of a group")
        if group is None:
            return refusal(404, "group not found; it may have been deleted")
        try:
            opened = await self._console_of(group)
        except (SidecarUnavailable, OSError) as error:
            self._list.faults[group.id] = str(error)
            return refusal(502, str(error))
        self._list.faults.pop(group.id, None)
        return document_answer(200, {"address": opened.new_address()})

    async def _console_of(self, group: GroupSummary) -> GroupConsole:
        """Return the console of a group, whose sidecar can be reached. Raises ``SidecarUnavailable`` and OSError."""
        found = self._consoles.get(group.id)
        if found is None:
            if len(self._consoles) >= CONSOLES_MAX:
                raise SidecarUnavailable(f"{CONSOLES_MAX} consoles are open; end `gantry console` and start it again")
            backend = Backend(self._directory.sidecars(group), self._report)
            found = (backend, GroupConsole(backend, group.id, f"{self._server.url}/"))
            self._consoles[group.id] = found
            await found[1].start()
        await found[0].link()
        return found[1]
