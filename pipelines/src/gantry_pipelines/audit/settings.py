"""What an audit is told. Plain values that travel to the tasks; secrets are not shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from gantry_pipelines.audit.copies import Algorithm
from gantry_pipelines.audit.model import Check
from gantry_pipelines.audit.planning import CHUNK_BYTES_DEFAULT
from gantry_pipelines.source_options import fitting_name
from pyspark_rocketmq.model import Replica
from pyspark_rocketmq.settings import TlsFiles


@final
@dataclass(frozen=True, slots=True)
class SidecarAccess:
    """How sidecars are asked."""

    tokens: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """By the URL of a sidecar, or a beginning of it, or `*`; the longest that fits counts."""
    tls: TlsFiles = field(default_factory=TlsFiles)
    """For sidecars whose URL begins with https."""
    patience_ms: int = 60_000
    """How long a sidecar that does not answer is asked again: pods are restarted, and that is no finding."""

    def token_for(self, url: str) -> str:
        """What this sidecar is shown; empty: nothing."""
        tokens = dict(self.tokens)
        return tokens.get(fitting_name(url, tokens), "")


@final
@dataclass(frozen=True, slots=True)
class AuditSettings:
    """One audit."""

    replicas: tuple[Replica, ...]
    """All copies of all brokers; those of one broker are held against each other."""
    checks: frozenset[Check] = frozenset({Check.COPIES, Check.INDEX})
    """What is compared with what."""
    algorithm: Algorithm = "crc32"
    """crc32 sees any accident; sha256 a forgery, too, at a third of the speed."""
    chunk_bytes: int = CHUNK_BYTES_DEFAULT
    """Of the log, by one task: less costs round trips, more only shows progress less often."""
    begin: int = 0
    """Of each log: nothing before it is looked at."""
    access: SidecarAccess = SidecarAccess()
    """What sidecars are shown."""

    def __post_init__(self) -> None:
        if self.chunk_bytes < 1 << 16:
            raise ValueError("chunk_bytes is at least 65536: each chunk costs a question to every copy")
