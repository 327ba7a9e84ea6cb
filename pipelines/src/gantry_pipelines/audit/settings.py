"""The settings of an audit: plain values that are pickled to the tasks; `repr` does not show secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from gantry_pipelines.audit.copies import Algorithm
from gantry_pipelines.audit.model import Check
from gantry_pipelines.audit.planning import CHUNK_BYTES_DEFAULT
from gantry_pipelines.source_options import matching_url_prefix
from pyspark_rocketmq.model import Replica
from pyspark_rocketmq.settings import TlsFiles


@final
@dataclass(frozen=True, slots=True)
class SidecarAccess:
    """The credentials and timeouts for sidecars."""

    tokens: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Tokens by a prefix of the sidecar's URL, or `*`; the longest match is used."""
    tls: TlsFiles = field(default_factory=TlsFiles)
    """TLS files for sidecars whose URL begins with https."""
    patience_ms: int = 60_000
    """How long requests to an unavailable sidecar are retried, in milliseconds: a restarting pod is no finding."""

    def token_for(self, url: str) -> str:
        """Return the token for a sidecar; empty if it has none."""
        tokens = dict(self.tokens)
        return tokens.get(matching_url_prefix(url, tokens), "")


@final
@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The settings of one audit."""

    replicas: tuple[Replica, ...]
    """All copies of all brokers; those of one broker are compared with each other."""
    checks: frozenset[Check] = frozenset({Check.COPIES, Check.INDEX})
    """The comparisons of the audit."""
    algorithm: Algorithm = "crc32"
    """Checksum algorithm: crc32 detects accidental changes, sha256 also forgeries, at a third of the speed."""
    chunk_bytes: int = CHUNK_BYTES_DEFAULT
    """Bytes of the log in one task: smaller chunks need more requests, larger ones report progress less often."""
    begin: int = 0
    """Offset in each log at which the audit begins."""
    access: SidecarAccess = SidecarAccess()
    """The credentials and timeouts for sidecars."""

    def __post_init__(self) -> None:
        if self.chunk_bytes < 1 << 16:
            raise ValueError(
                f"chunk_bytes is {self.chunk_bytes}, must be at least 65536: each chunk needs a request to every copy"
            )
