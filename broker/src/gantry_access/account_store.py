"""The present users and policies of a server, as its guard sees them. Owned by the event loop.

A change replaces tables and accounts together, between two requests. Who stores and copies the tables is not known
here: the server calls ``replace``, and ``document`` when it writes them.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final, final

from gantry_access.account_document import AccountDocument, read_tables, write_tables
from gantry_access.accounts import Accounts
from gantry_access.settings import InitialUser
from gantry_access.stored_accounts import AccountTables, StoredUser, UserType, build_accounts

log = logging.getLogger(__name__)


@final
class AccountStore:
    """Users and policies that requests change."""

    def __init__(self, *, is_authorizing: bool, initial_user: InitialUser | None = None) -> None:
        """Without ``is_authorizing`` every enabled user has every permission."""
        self.accounts = Accounts()
        """What requests are checked against."""
        self.tables = AccountTables()
        """What is stored and listed."""
        self._is_authorizing: Final = is_authorizing
        self._initial_user: Final = initial_user

    def __repr__(self) -> str:
        return f"<AccountStore {self.tables!r}>"

    def replace(self, tables: AccountTables) -> None:
        """Make these tables the present ones, for all requests from now on."""
        before = self.tables, self.accounts
        self.accounts = build_accounts(tables, is_authorizing=self._is_authorizing, before=before)
        self.tables = tables

    def document(self) -> AccountDocument:
        """Return a copy of the tables, with passwords."""
        return write_tables(self.tables)

    def load(self, document: AccountDocument) -> None:
        """Make a stored or received document the present tables. Raises ValueError for an invalid one."""
        self.replace(read_tables(document))

    def set_change_count(self, count: int) -> None:
        """Let the next change have the number after this one; users and policies stay as they are."""
        self.tables = replace(self.tables, change_count=count)

    def add_initial_user(self) -> bool:
        """Add the configured first user to tables in which no enabled user is a Super user; return whether it was.

        That is the case at the first start, and after the last Super user was deleted or disabled: then this is the
        way back in.
        """
        user = self._initial_user
        if self.tables.has_super_user:
            return False
        if user is None:
            log.warning("no super user exists; set initAuthenticationUser and restart")
            return False
        self.replace(self.tables.with_user(StoredUser(user.name, user.password, UserType.SUPER)))
        log.info("first super user created", extra={"user": user.name})
        return True
