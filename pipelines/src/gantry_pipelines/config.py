"""The configuration of a job: the spec of its resource, and `runtime`, the settings of one machine.

A configuration is the manifest of a `TopicArchive`, `LogAudit` or `TopicAnalytics`, or only its `spec`. Fields,
bounds, defaults and their parsing are those of ``gantry_spec``. `runtime` has the addresses of name servers and
sidecars and the mount points of volumes: the operator writes it for its pods; on any other machine you write it
yourself, or set it with `--set runtime.…=`.

Earlier versions named the field `here`. It is still read, since the operator that wrote it may be an earlier one.

An invalid configuration is refused with a list of all problems, each with the path of its field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, final

import msgspec

from gantry_client import SignatureKind
from gantry_pipelines.errors import ConfigError
from gantry_spec.manifest.errors import ManifestError, Problem
from gantry_spec.manifest.parts import Address, Part
from gantry_spec.manifest.plain_yaml import Value, read_yaml
from gantry_spec.manifest.reading import decode_value, head_problems, problem_of, unknown_fields
from gantry_spec.pipelines.parts import PipelineSpec
from gantry_spec.pipelines.rules import broken_general_rules

P = TypeVar("P", bound=msgspec.Struct)
FORMER_NAME: Final = "here"
"""The former name of `runtime`."""
S_co = TypeVar("S_co", bound=PipelineSpec, covariant=True)


@final
class RuntimeConfig(Part, frozen=True):
    """Settings of one machine, the field `runtime` of a configuration; in a pod the operator has written them."""

    name_servers: list[Address] = msgspec.field(default_factory=list)
    """Addresses (`host:port`) of name servers; empty: those of the resource."""

    sidecars: list[str] = msgspec.field(default_factory=list)
    """Base URLs of sidecars, for example `http://127.0.0.1:8080`."""

    directories: dict[str, str] = msgspec.field(default_factory=dict)
    """Directories of stores that are mounted here, by `broker` or `broker:number`."""

    access_file: str = ""
    """File with `accessKey` and `secretKey`, in the format of RocketMQ's `tools.yml`."""

    signature: SignatureKind | None = None
    """How this account signs requests, `v1` if unset; servers with `aclMode=STRICT` accept only `strict`."""

    token_files: dict[str, str] = msgspec.field(default_factory=dict)
    """Files with the read tokens of sidecars, by a prefix of the sidecar's base URL, or `*` for all."""

    ca_file: str = ""
    """CA certificate of brokers, name servers and sidecars; empty: no TLS, or the system's authorities."""

    host_names_checked: bool = True
    """Whether a server certificate must name its host. In a cluster the pods of a group are checked by CA alone."""

    certificate_file: str = ""
    """PEM file of the client certificate, for servers that require one."""

    key_file: str = ""
    """PEM file of the key of that certificate."""

    destination: str = ""
    """Folder of the results, or an object store's address for an archive; in a pod, a mount point and `path`."""

    checkpoint: str = ""
    """Folder of Spark's checkpoint; empty: a folder within that of the results. Required for an object store."""

    spark_conf: dict[str, str] = msgspec.field(default_factory=dict)
    """Spark settings of the operator, which place the executors; they override `engine.sparkConf`."""

    archive: str = ""
    """Folder or address of the archive that an audit compares with the brokers' log."""

    once: bool = False
    """Process the present messages and exit, even without a `schedule`: set by `--once`, and in pods of a CronJob."""


@final
@dataclass(frozen=True, slots=True)
class PipelineConfig(Generic[S_co]):
    """The complete configuration of one run."""

    spec: S_co
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    @property
    def is_continuous(self) -> bool:
        """Whether the job runs until it is stopped, if its kind supports that."""
        return not self.spec.schedule and not self.runtime.once

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The name servers to use: those of `runtime`, else those of the resource."""
        return tuple(self.runtime.name_servers or self.spec.name_servers)


def read_config(
    text: str | bytes, spec_type: type[S_co], kind: str, settings: Sequence[str] = ()
) -> PipelineConfig[S_co]:
    """Parse a configuration file's text and apply each override `a.b=value` of ``settings``.

    The text is a whole resource of that kind or its `spec` alone, as YAML or JSON; `runtime` is a field of the spec, or
    a sibling of `spec` in a whole resource. Raises ``ConfigError``.
    """
    try:
        document = _spec_of(_parse_document(text), kind)
        for setting in settings:
            _apply_override(document, setting)
    except ManifestError as error:
        raise _config_error(error.problems) from error
    return config_of(document, spec_type)


def config_of(document: Mapping[str, Any], spec_type: type[S_co]) -> PipelineConfig[S_co]:
    """Convert plain values, the fields of a spec and `runtime`, to a configuration. Raises ``ConfigError``."""
    document = _with_present_name(document)
    spec = {name: value for name, value in document.items() if name != "runtime"}
    runtime = document.get("runtime", {})
    problems = [*unknown_fields(spec, spec_type, ""), *unknown_fields(runtime, RuntimeConfig, "runtime")]
    if problems:
        raise _config_error(problems)
    config = PipelineConfig(_convert(spec, spec_type, ""), _convert(runtime, RuntimeConfig, "runtime"))
    problems = [one._replace(path=one.path.removeprefix("spec.")) for one in broken_general_rules(config.spec)]
    if problems:
        raise _config_error(problems)
    return config


def _with_present_name(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document whose `here` is `runtime`, unless it has both; then `here` is refused as an unknown field."""
    is_former = FORMER_NAME in document and "runtime" not in document
    return {"runtime" if is_former and name == FORMER_NAME else name: value for name, value in document.items()}


def _convert(value: object, part: type[P], path: str) -> P:
    try:
        return msgspec.convert(value, part, dec_hook=decode_value)
    except msgspec.ValidationError as error:
        problem = problem_of(str(error))
        inner = ".".join(word for word in (path, problem.path) if word)
        raise _config_error([problem._replace(path=inner)]) from error


def _config_error(problems: Sequence[Problem]) -> ConfigError:
    return ConfigError([str(problem) for problem in problems])


def _parse_document(text: str | bytes) -> Value:
    documents = read_yaml(text)
    if len(documents) > 1:
        raise ManifestError([Problem("", f"found {len(documents)} documents, expected 1")])
    return documents[0] if documents else None


def _spec_of(document: Value, kind: str) -> dict[str, Any]:
    """Return the spec of a document, with `runtime` as one of its fields."""
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ManifestError(
            [Problem("", f"not a mapping: a configuration is the manifest of a {kind}, or only its spec")]
        )
    if not document.keys() & {"apiVersion", "kind", "spec"}:
        return _with_present_name(document)
    problems = list(head_problems(document, kind, "runtime", FORMER_NAME))
    spec = document.get("spec") or {}
    if not isinstance(spec, dict):
        problems.append(Problem("spec", "not a mapping"))
    if problems or not isinstance(spec, dict):
        raise ManifestError(problems)
    return _with_present_name(
        {**spec, **{name: document[name] for name in ("runtime", FORMER_NAME) if name in document}}
    )


def _apply_override(document: dict[str, Any], setting: str) -> None:
    """Apply an override `a.b=value` to a document; the value is parsed as YAML."""
    path, separator, text = setting.partition("=")
    names = path.removeprefix("spec.").split(".")
    if names[0] == FORMER_NAME:
        names[0] = "runtime"
    if not separator or not all(names):
        raise ConfigError(
            [f"--set {setting}: expected FIELD=VALUE, for example topics.include=[orders] or trigger=30s"]
        )
    inner = document
    for index, name in enumerate(names[:-1]):
        value = inner.setdefault(name, {})
        if not isinstance(value, dict):
            raise ConfigError([f"--set {setting}: {'.'.join(names[: index + 1])} is not a mapping"])
        inner[name] = inner = dict(value)
    inner[names[-1]] = _parse_document(text)
