"""The CustomResourceDefinitions of two releases of the Gateway API, as its project publishes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from published_definitions import published_definitions

PINS: Final = Path(__file__).resolve().parent / "gateway_api"
MODULE: Final = "sigs.k8s.io/gateway-api"
KINDS: Final = ("gateways", "tcproutes")
"""The kinds that Gantry reads or creates."""


class Release(NamedTuple):
    """A release of the Gateway API, and the served version of its TCPRoutes."""

    pins: Path
    """The folder with `go.mod` and `go.sum`, which pin the version."""

    channel: str
    """The channel of the CRDs, `standard` or `experimental`."""

    version: str


PRESENT: Final = Release(PINS, "standard", "v1")
FORMER: Final = Release(PINS / "former", "experimental", "v1alpha2")


def definitions(release: Release) -> list[dict[str, Any]]:
    """Return the CRDs of both kinds. Raises ``AssertionError`` without a network and a cached copy."""
    names = [f"config/crd/{release.channel}/gateway.networking.k8s.io_{kind}.yaml" for kind in KINDS]
    return published_definitions(release.pins, MODULE, names)
