"""A code opens the console once: not again, not later, and never wider than the token that asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_scene import READ_TOKEN, TOKEN, SidecarChild, broker_process, sidecar_process, write_token_files

from gantry_access.console_sessions import (
    CODE_LIFETIME_S,
    CODES_MAX,
    SESSION_LIFETIME_S,
    SESSIONS_MAX,
    ConsoleSessions,
)
from gantry_admin.__main__ import parser, settings_of
from gantry_admin.errors import Problem
from gantry_admin.guard import Guard, Scope

DIGEST = b"d" * 32


class Time:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_code_is_exchanged_once() -> None:
    """A second exchange of the same code fails."""
    sessions = ConsoleSessions(Time())
    code = sessions.new_code("token:console", DIGEST, may_change=True)

    session = sessions.exchange(code)

    assert session is not None and sessions.grant_of(session) is not None
    assert sessions.exchange(code) is None
    assert sessions.exchange("guessed") is None
    assert sessions.grant_of(code) is None, "a code is no session"


def test_code_expires() -> None:
    """A code is valid for ten minutes, and then grants no session."""
    time = Time()
    sessions = ConsoleSessions(time)
    early, late = (sessions.new_code("n", DIGEST, may_change=True) for _ in range(2))

    time.now_s += CODE_LIFETIME_S - 1
    assert sessions.exchange(early) is not None
    time.now_s += 1
    assert sessions.exchange(late) is None


def test_session_expires() -> None:
    """A session is invalid after half a day."""
    time = Time()
    sessions = ConsoleSessions(time)
    session = sessions.exchange(sessions.new_code("n", DIGEST, may_change=True))
    assert session is not None

    time.now_s += SESSION_LIFETIME_S - 1
    assert sessions.grant_of(session) is not None
    time.now_s += 1
    assert sessions.grant_of(session) is None


def test_number_of_codes_and_sessions_is_bounded() -> None:
    """The oldest are dropped first."""
    sessions = ConsoleSessions(Time())
    codes = [sessions.new_code("n", DIGEST, may_change=True) for _ in range(CODES_MAX + 1)]
    assert sessions.exchange(codes[0]) is None
    assert sessions.exchange(codes[1]) is not None
    held = [sessions.exchange(sessions.new_code("n", DIGEST, may_change=True)) for _ in range(SESSIONS_MAX + 1)]
    assert [held[0] is not None and sessions.grant_of(held[0]) is None, sessions.grant_of(held[1] or "") is None] == [
        True, False
    ]  # fmt: skip


def guard(tmp_path: Path) -> Guard:
    arguments = ["--page", "p", "--control", "c", "--store", "s", *write_token_files(tmp_path)]
    return Guard(settings_of(parser().parse_args(arguments)))


def entered(guard: Guard, token: str) -> str:
    """The session of a page that was opened with a code of ``token``'s."""
    shown = f"Bearer {token}"
    session = guard.sessions.exchange(guard.new_console_code(guard.caller(shown, None), shown))
    assert session is not None
    return session


@pytest.mark.parametrize(("token", "may_change"), [(TOKEN, True), (READ_TOKEN, False)])
def test_session_has_the_permissions_of_its_token(tmp_path: Path, token: str, may_change: bool) -> None:
    """The audit log has the token's name, marked as the console's."""
    one = guard(tmp_path)

    caller = one.caller(f"Bearer {entered(one, token)}", None)

    assert caller.may_change is may_change
    assert caller.name in ("token:operator (console)", "token:spark (console)")
    one.check(Scope.READ, caller, "127.0.0.1")
    if not may_change:
        with pytest.raises(Problem):
            one.check(Scope.CHANGE, caller, "127.0.0.1")


def test_session_cannot_request_a_code(tmp_path: Path) -> None:
    """Otherwise a session could prolong itself for ever."""
    one = guard(tmp_path)
    shown = f"Bearer {entered(one, TOKEN)}"

    with pytest.raises(Problem) as refused:
        one.new_console_code(one.caller(shown, None), shown)
    assert refused.value.status == 403


def test_session_ends_with_its_token(tmp_path: Path) -> None:
    """Removing a token from its file ends the sessions that were opened with it."""
    one = guard(tmp_path)
    session = entered(one, TOKEN)
    (tmp_path / "tokens").write_text("operator:another-token-for-the-operator\n")
    one.refresh()

    with pytest.raises(Problem) as refused:
        one.caller(f"Bearer {session}", None)
    assert refused.value.status == 401


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SidecarChild]:
    folder = tmp_path_factory.mktemp("console")
    with broker_process(folder / "store"), sidecar_process(folder / "store", *write_token_files(folder)) as one:
        one.wait_ready()
        yield one


def test_browser_login_over_http(sidecar: SidecarChild) -> None:
    """Token, code, session, requests; the second use of the code is refused with the remedy."""
    code = sidecar.post("/v1/console/codes", {}, token=TOKEN).json()["code"]

    opened = sidecar.post("/v1/console/sessions", {"code": code})
    again = sidecar.post("/v1/console/sessions", {"code": code})

    session = opened.json()["session"]
    assert (opened.status_code, again.status_code) == (200, 401)
    assert "gantry console" in again.json()["reason"]
    assert sidecar.get("/v1/role", token=session).status_code == 200
    assert sidecar.get("/v1/role", token=code).status_code == 401
    assert TOKEN not in opened.text + again.text


def test_code_requires_a_token(sidecar: SidecarChild) -> None:
    """Requests without a token, with a wrong one, or with a session get no code."""
    code = sidecar.post("/v1/console/codes", {}, token=READ_TOKEN).json()["code"]
    session = sidecar.post("/v1/console/sessions", {"code": code}).json()["session"]

    statuses = [sidecar.post("/v1/console/codes", {}, token=token).status_code for token in (None, "x" * 40, session)]

    assert statuses == [401, 401, 403]
