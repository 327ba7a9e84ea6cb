"""The configuration of a job: the spec of its resource, and `here`, the part that differs from machine to machine.

A configuration is a `TopicArchive`, `LogAudit` or `TopicAnalytics` as it is handed to Kubernetes, whole or only its
`spec`. Fields, bounds, defaults and the reading of all these are those of ``gantry_spec``. Where name servers and
sidecars answer, and where a volume is mounted, stand in `here`: the operator writes it for its pods, and a person
writes it, or sets it with `--set here.…=`, on a machine of their own.

A configuration that cannot be used is refused with every problem by the path of its field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

import msgspec

from gantry_pipelines.errors import ConfigError
from gantry_spec.manifest.errors import ManifestError, Problem
from gantry_spec.manifest.parts import Address, Part
from gantry_spec.manifest.plain_yaml import Value, read_yaml
from gantry_spec.manifest.reading import decode_value, head_problems, problem_of, unknown_fields
from gantry_spec.pipelines.parts import PipelineSpec

P = TypeVar("P", bound=msgspec.Struct)
S_co = TypeVar("S_co", bound=PipelineSpec, covariant=True)


@final
class Here(Part, frozen=True):
    """What is so on this machine only: written by the operator into what its pods read, or by a person."""

    name_servers: list[Address] = msgspec.field(default_factory=list)
    sidecars: list[str] = msgspec.field(default_factory=list)
    """Base URLs."""

    directories: dict[str, str] = msgspec.field(default_factory=dict)
    """Broker, or broker:number, to the directory of its store."""

    access_file: str = ""
    """With `accessKey` and `secretKey`, as RocketMQ's `tools.yml`."""

    token_files: dict[str, str] = msgspec.field(default_factory=dict)
    """Base URL of a sidecar, or its beginning, or `*`, to the file with its token for reading."""

    ca_file: str = ""
    """Of the authority of brokers, name servers and sidecars; empty: no TLS, or the system's authorities."""

    host_names_checked: bool = True
    """Whether a certificate has to name its host. A group's pods are vouched for by their authority alone."""

    certificate_file: str = ""
    key_file: str = ""
    destination: str = ""
    """Folder of the results; in a pod, where the claim is mounted, with `path` behind it."""

    checkpoint: str = ""
    """Folder of the checkpoint; empty: the job puts it beside its results."""

    spark_conf: dict[str, str] = msgspec.field(default_factory=dict)
    """Where Spark's executors run, as decided by what made this pod; goes before `engine.sparkConf`."""

    archive: str = ""
    """Folder of the archive that an audit compares with the log."""

    once: bool = False
    """Process what exists now and end, even without a `schedule`: set for the pods of a CronJob, and by `--once`."""


@final
@dataclass(frozen=True, slots=True)
class PipelineConfig(Generic[S_co]):
    """The configuration of one run."""

    spec: S_co
    here: Here = field(default_factory=Here)

    @property
    def is_continuous(self) -> bool:
        """Whether it runs until it is stopped, where its kind can do that at all."""
        return not self.spec.schedule and not self.here.once

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The name servers to ask: those seen from here, else those of the resource."""
        return tuple(self.here.name_servers or self.spec.name_servers)


def read_config(
    text: str | bytes, spec_type: type[S_co], kind: str, settings: Sequence[str] = ()
) -> PipelineConfig[S_co]:
    """Return the configuration in a file's text, with each `a.b=value` of ``settings`` put over it.

    The text is a whole resource of that kind or its `spec` alone, as YAML or JSON; `here` stands in the spec, or
    beside it in a whole resource. Raises ``ConfigError``.
    """
    try:
        document = _spec_of(_one_document(text), kind)
        for setting in settings:
            _put(document, setting)
    except ManifestError as error:
        raise _refused(error.problems) from error
    return config_of(document, spec_type)


def config_of(document: Mapping[str, Any], spec_type: type[S_co]) -> PipelineConfig[S_co]:
    """Return the configuration in plain values: the fields of a spec, and `here` among them. Raises ``ConfigError``."""
    spec, here = {name: value for name, value in document.items() if name != "here"}, document.get("here", {})
    problems = [*unknown_fields(spec, spec_type, ""), *unknown_fields(here, Here, "here")]
    if problems:
        raise _refused(problems)
    return PipelineConfig(_converted(spec, spec_type, ""), _converted(here, Here, "here"))


def _converted(value: object, part: type[P], path: str) -> P:
    try:
        return msgspec.convert(value, part, dec_hook=decode_value)
    except msgspec.ValidationError as error:
        problem = problem_of(str(error))
        inner = ".".join(word for word in (path, problem.path) if word)
        raise _refused([problem._replace(path=inner)]) from error


def _refused(problems: Sequence[Problem]) -> ConfigError:
    return ConfigError([str(problem) for problem in problems])


def _one_document(text: str | bytes) -> Value:
    documents = read_yaml(text)
    if len(documents) > 1:
        raise ManifestError([Problem("", f"it holds {len(documents)} documents, and one is wanted")])
    return documents[0] if documents else None


def _spec_of(document: Value, kind: str) -> dict[str, Any]:
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ManifestError(
            [Problem("", f"it is no mapping: a configuration is a {kind}, or what stands below its spec")]
        )
    if not document.keys() & {"apiVersion", "kind", "spec"}:
        return dict(document)
    problems = list(head_problems(document, kind, "here"))
    spec = document.get("spec") or {}
    if not isinstance(spec, dict):
        problems.append(Problem("spec", "it is no mapping"))
    if problems or not isinstance(spec, dict):
        raise ManifestError(problems)
    return {**spec, "here": document["here"]} if "here" in document else dict(spec)


def _put(document: dict[str, Any], setting: str) -> None:
    """Put `a.b=value` into a document; the value is read as YAML."""
    path, separator, text = setting.partition("=")
    names = path.removeprefix("spec.").split(".")
    if not separator or not all(names):
        raise ConfigError([f"--set {setting}: write it like topics.include=[orders] or trigger=30s"])
    inner = document
    for index, name in enumerate(names[:-1]):
        held = inner.setdefault(name, {})
        if not isinstance(held, dict):
            raise ConfigError([f"--set {setting}: {'.'.join(names[: index + 1])} is no mapping"])
        inner[name] = inner = dict(held)
    inner[names[-1]] = _one_document(text)
