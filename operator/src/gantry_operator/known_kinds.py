"""Which kinds of things the cluster knows, of those that it need not know; and waiting for those that it does not.

What is looked after, and what is made, follows from it when an operator begins to lead. A definition may come later:
with the very chart that brings the operator, whose definitions and rights the API server takes a moment to serve, or
years after it, with a Prometheus. Then the process ends in order, and the next one begins with everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, final

from gantry_operator.api import Kind, Kubernetes
from gantry_operator.errors import ApiError

AGAIN_S: Final = 0.5
FIRST_S: Final = 2.0
LAST_S: Final = 60.0
"""Between two questions, in the end."""


@final
class KnownKinds:
    """Owned by one event loop; made when an operator begins to lead."""

    def __init__(self, api: Kubernetes, *, first_s: float = FIRST_S, last_s: float = LAST_S) -> None:
        self._api: Final = api
        self._first_s: Final = first_s
        self._last_s: Final = last_s
        self._missing: Final[dict[Kind, Sequence[str]]] = {}

    async def has(self, kind: Kind, namespaces: Sequence[str] = (), *, patience_s: float = 0.0) -> bool:
        """Whether the cluster has such things, and we may look at them. One that we may not look at is left alone.

        Of what comes with our own chart it is asked a little longer (``patience_s``).
        """
        asked_s = 0.0
        while not await self._is_listed(kind, namespaces):
            if asked_s >= patience_s:
                self._missing[kind] = namespaces
                return False
            await asyncio.sleep(AGAIN_S)
            asked_s += AGAIN_S
        return True

    async def _is_listed(self, kind: Kind, namespaces: Sequence[str]) -> bool:
        try:
            for namespace in namespaces or ("",):
                await self._api.list(kind, namespace, "gantry.dev/none")
        except ApiError:
            return False
        return True

    async def until_more(self) -> Kind:
        """Wait until one of those that were missing is there. For ever, where none was."""
        wait_s = self._first_s
        while True:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, self._last_s)
            for kind, namespaces in list(self._missing.items()):
                if await self.has(kind, namespaces):
                    return kind
