"""Where a pod may run at all, by the rules of the scheduler that do not count resources.

    of the node        cordon, taints without a toleration, node selector, required node affinity, affinity of volumes
    among pods         required affinity and anti-affinity, in both directions; topology spread with `DoNotSchedule`

Each function returns why not, as a text for people, and an empty text where the pod may run. Preferences, such as those
that the operator sets for zones, never exclude a node, and are left out.

A ``namespaceSelector`` with conditions is compared with no namespace, since labels of namespaces are not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

Object = Mapping[str, Any]
Labels = Mapping[str, str]

UNSCHEDULABLE_TAINT: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
"""The taint of a cordoned node, which its field ``unschedulable`` stands for, too."""

EXCLUDING_EFFECTS: Final = ("NoSchedule", "NoExecute")
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@final
class PlacedPod(NamedTuple):
    """A pod on a node, as far as the rules among pods need it."""

    name: str
    namespace: str
    labels: Labels
    node: str
    spec: Object
    """The spec of the pod, of which only the affinity is read."""

    is_leaving: bool = False
    """Whether it is being deleted: topology spread does not count it any more."""

    @property
    def anti_affinities(self) -> list[Object]:
        """The terms of its required anti-affinity, which also exclude other pods from its own domain."""
        return _terms(self.spec, "podAntiAffinity")


# -- the node ----------------------------------------------------------------------------------------------------------


def node_obstacle(spec: Object, node: Object, volume_affinities: Sequence[Object] = ()) -> str:
    """Return why a node excludes every pod of this spec. ``volume_affinities`` are the required ones of its volumes."""
    if not matches_node_selection(spec, node):
        return "node selector or node affinity does not match"
    taint = untolerated_taint(spec, node)
    if taint is not None:
        if taint["key"] == UNSCHEDULABLE_TAINT["key"]:
            return "cordoned (unschedulable)"
        value = f"={taint['value']}" if taint.get("value") else ""
        return f"taint {taint['key']}{value}:{taint['effect']} is not tolerated"
    if not all(matches_terms(one.get("nodeSelectorTerms"), node) for one in volume_affinities):
        return "the pod's volume is bound to another node"
    return ""


def matches_node_selection(spec: Object, node: Object) -> bool:
    """Return whether a node matches the node selector and the required node affinity of a pod."""
    labels = _labels(node)
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    return required is None or matches_terms(required.get("nodeSelectorTerms"), node)


def untolerated_taint(spec: Object, node: Object) -> Object | None:
    """Return the first taint of a node that excludes a pod; a cordon counts as one."""
    body = node.get("spec") or {}
    taints = [*(body.get("taints") or []), *([UNSCHEDULABLE_TAINT] if body.get("unschedulable") else [])]
    tolerations = spec.get("tolerations") or []
    for taint in taints:
        if taint.get("effect") in EXCLUDING_EFFECTS and not any(_tolerates(one, taint) for one in tolerations):
            found: Object = taint
            return found
    return None


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if operator == "Exists":
        return key in ("", taint.get("key"))
    return (
        operator == "Equal"
        and key == taint.get("key")
        and (toleration.get("value") or "") == (taint.get("value") or "")
    )


def matches_terms(terms: Sequence[Object] | None, node: Object) -> bool:
    """Return whether a node matches one of the terms of a node selector. An empty term matches no node."""
    return any(_matches_term(term, node) for term in terms or [])


def _matches_term(term: Object, node: Object) -> bool:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    names = {"metadata.name": node["metadata"]["name"]}
    return all(_holds(one, _labels(node)) for one in expressions) and all(_holds(one, names) for one in fields)


def _holds(expression: Object, labels: Labels) -> bool:
    """Return whether labels satisfy one expression of a selector; none satisfy an unknown operator."""
    key, operator = str(expression.get("key", "")), expression.get("operator")
    values, value = expression.get("values") or [], labels.get(key)
    match operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _is_ordered(operator, value, values)
    return False


def _is_ordered(operator: str, value: str | None, values: Sequence[str]) -> bool:
    try:
        mine, limit = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return mine > limit if operator == "Gt" else mine < limit


def selects(selector: Object | None, labels: Labels) -> bool:
    """Return whether a label selector selects these labels: an empty selector all, and none without a selector."""
    if selector is None:
        return False
    pairs = selector.get("matchLabels") or {}
    return all(labels.get(name) == value for name, value in pairs.items()) and all(
        _holds(one, labels) for one in selector.get("matchExpressions") or []
    )


# -- among pods --------------------------------------------------------------------------------------------------------


@final
class PodRules:
    """The rules between one pod and all placed pods, prepared once to judge many nodes."""

    def __init__(self, pod: PlacedPod, placed: Iterable[PlacedPod], nodes: Sequence[Object]) -> None:
        """``pod`` is the one to place; its node is not read."""
        others = [one for one in placed if (one.namespace, one.name) != (pod.namespace, pod.name)]
        by_name = {str(node["metadata"]["name"]): _labels(node) for node in nodes}
        self._forbidden: Final = list(_forbidden_domains(pod, others, by_name))
        """Topology key, value, and the pod that forbids this domain."""

        self._wanted: Final = [_affinity(term, pod, others, by_name) for term in _terms(pod.spec, "podAffinity")]
        self._spreads: Final = [_Spread(one, pod, others, nodes) for one in _hard_spreads(pod.spec)]

    def obstacle(self, node: Object) -> str:
        """Return why the placed pods exclude a node."""
        labels = _labels(node)
        for key, value, other in self._forbidden:
            if labels.get(key) == value:
                place = "" if key == "kubernetes.io/hostname" else f" in {key}={value}"
                return f"anti-affinity to pod {other}{place}"
        for key, domains in self._wanted:
            if key not in labels or (domains is not None and labels[key] not in domains):
                return "no pod that the pod affinity requires is there"
        return next((text for one in self._spreads if (text := one.obstacle(labels))), "")


def _terms(spec: Object, kind: str) -> list[Object]:
    return list(((spec.get("affinity") or {}).get(kind) or {}).get(REQUIRED) or [])


def _forbidden_domains(
    pod: PlacedPod, others: Iterable[PlacedPod], nodes: Mapping[str, Labels]
) -> Iterator[tuple[str, str, str]]:
    """Yield the domains that the anti-affinity of the pod forbids, and those that the one of placed pods does."""
    own = pod.anti_affinities
    for other in others:
        terms = [term for term in own if _is_meant(term, pod, other)]
        terms += [term for term in other.anti_affinities if _is_meant(term, other, pod)]
        for key in (str(term["topologyKey"]) for term in terms):
            domain = nodes.get(other.node, {}).get(key)
            if domain is not None:
                yield key, domain, other.name


def _affinity(
    term: Object, pod: PlacedPod, others: Iterable[PlacedPod], nodes: Mapping[str, Labels]
) -> tuple[str, set[str] | None]:
    """Return the topology key and the domains that an affinity allows; None for any, for the first of such pods."""
    key = str(term["topologyKey"])
    meant = [other for other in others if _is_meant(term, pod, other)]
    if not meant and _is_meant(term, pod, pod):
        return key, None
    domains = (nodes.get(other.node, {}).get(key) for other in meant)
    return key, {one for one in domains if one is not None}


def _is_meant(term: Object, owner: PlacedPod, other: PlacedPod) -> bool:
    """Return whether a term of one pod's affinity is about another pod."""
    namespaces, selector = term.get("namespaces") or [], term.get("namespaceSelector")
    if not namespaces and selector is None:
        is_near = other.namespace == owner.namespace
    else:
        is_near = other.namespace in namespaces or (selector is not None and not any(selector.values()))
    return is_near and selects(_with_keys(term, owner.labels), other.labels)


def _with_keys(term: Object, labels: Labels) -> Object | None:
    """Return the selector of a term, with the values that ``matchLabelKeys`` takes from the pod's own labels."""
    selector = term.get("labelSelector")
    if selector is None:
        return None
    expressions = list(selector.get("matchExpressions") or [])
    for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        for key in term.get(field) or []:
            if key in labels:
                expressions.append({"key": key, "operator": operator, "values": [labels[key]]})
    return {**selector, "matchExpressions": expressions}


def _hard_spreads(spec: Object) -> list[Object]:
    found = spec.get("topologySpreadConstraints") or []
    return [one for one in found if one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"]


@final
class _Spread:
    """One topology spread constraint with `DoNotSchedule`, and the present number of pods in each domain."""

    def __init__(
        self, constraint: Object, pod: PlacedPod, others: Iterable[PlacedPod], nodes: Sequence[Object]
    ) -> None:
        self._key: Final = str(constraint.get("topologyKey", ""))
        self._skew_max: Final = int(constraint.get("maxSkew") or 1)
        selector = _with_keys(constraint, pod.labels)
        self._own: Final = int(selects(selector, pod.labels))
        homes = {
            str(node["metadata"]["name"]): domain
            for node in nodes
            if (domain := _labels(node).get(self._key)) is not None and _is_counted(constraint, pod.spec, node)
        }
        counts = Counter(dict.fromkeys(homes.values(), 0))
        for other in others:
            is_meant = other.namespace == pod.namespace and not other.is_leaving and selects(selector, other.labels)
            if is_meant and other.node in homes:
                counts[homes[other.node]] += 1
        self._counts: Final = counts
        too_few = len(counts) < int(constraint.get("minDomains") or 1)
        self._least: Final = 0 if too_few or not counts else min(counts.values())

    def obstacle(self, labels: Labels) -> str:
        domain = labels.get(self._key)
        if domain is None:
            return f"topology spread needs the label {self._key}"
        if self._counts.get(domain, 0) + self._own - self._least > self._skew_max:
            return f"topology spread over {self._key} allows no more pods in {domain}"
        return ""


def _is_counted(constraint: Object, spec: Object, node: Object) -> bool:
    """Return whether the domains of a constraint include those of this node."""
    if constraint.get("nodeAffinityPolicy", "Honor") == "Honor" and not matches_node_selection(spec, node):
        return False
    return constraint.get("nodeTaintsPolicy", "Ignore") == "Ignore" or untolerated_taint(spec, node) is None


def _labels(node: Object) -> Labels:
    found: Labels = node["metadata"].get("labels") or {}
    return found
