"""Filters as broker and client use them, and the results of Apache's evaluator on some thousand pairs."""

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantry_wire.filters import TagFilter, parse_filter
from gantry_wire.message import StoredMessage, encode_record, stored_properties
from gantry_wire.properties import format_properties, parse_properties, property_marks, select_properties
from gantry_wire.sql92 import (
    EvaluationFault,
    ExpressionFault,
    SqlFilter,
    evaluation,
    filter,
    numbers,
    parse_sql_filter,
    terms,
    values,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "sql92-verdicts.jsonl"
VERDICT_LETTERS = {True: "T", False: "F", None: "U"}


# ------- Apache's verdicts


def evaluate_to_letter(sql: SqlFilter, message: dict[str, str]) -> str:
    try:
        return VERDICT_LETTERS[sql.evaluate(message)]
    except EvaluationFault:
        return "X"


def differences() -> list[str]:
    """Return the expressions for which the result differs from that of Apache's evaluator."""
    found = []
    for line in GOLDEN.read_text().splitlines():
        case = json.loads(line)
        try:
            sql = SqlFilter(case["expression"])
            ours = "".join(evaluate_to_letter(sql, message) for message in case["messages"])
        except ExpressionFault:
            ours = "refused"
        if ours != case["verdicts"]:
            found.append(case["expression"])
    return found


def test_results_equal_those_of_apaches_evaluator() -> None:
    """Random expressions, and every difficult value in every relation, give the results of RocketMQ's classes."""
    lines = [json.loads(line) for line in GOLDEN.read_text().splitlines()]

    assert sum(len(line["messages"]) for line in lines) >= 5_000
    assert {verdict for line in lines for verdict in line["verdicts"]} >= set("TFUX")
    assert differences() == []


def _loose_order(left: object, right: object) -> int:
    """Return Java's order, except that a number and a text that is no number are merely unequal."""
    try:
        return values_order(left, right)  # type: ignore[arg-type]
    except EvaluationFault:
        return -1


values_order = values.compare_values


def pythons_int(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise EvaluationFault(text) from error


@pytest.mark.parametrize(
    ("module", "name", "other"),
    [
        (values, "compare_doubles", lambda left, right: (left > right) - (left < right)),
        (evaluation, "compare_values", _loose_order),
        (evaluation, "parse_whole", lambda text, number: pythons_int(text)),
        (evaluation, "parse_double", lambda text: abs(numbers.parse_double(text))),
        (terms, "DOUBLE_MIN", 0.0),
        (terms, "LONG_MAX", 2**70),
        (evaluation, "SEARCHES", {word: (lambda text, wanted: wanted in text) for word in evaluation.SEARCHES}),
    ],
    ids=["NaN", "casts", "wholes", "signs", "zero", "longs", "searches"],
)
def test_comparison_with_apache_detects_a_wrong_rule(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, other: Callable[..., object]
) -> None:
    """The twin: with one rule changed the results differ from the recorded ones."""
    monkeypatch.setattr(module, name, other)

    assert differences() != []


# ------- properties as records hold them


def test_select_properties_finds_only_whole_names() -> None:
    """The last of two equal names that has a value wins; names within names or values are ignored."""
    text = "a\x011\x02xa\x012\x02b\x01a\x013\x02a\x014\x02a\x01\x02c\x015"
    found = select_properties(text, property_marks(["a", "b", "c", "d"]))

    assert found == {"a": "4", "b": "a\x013", "c": "5"}
    assert select_properties("", property_marks(["a"])) == {}
    assert select_properties("a\x01", property_marks(["a"])) == {}


@pytest.mark.parametrize(
    "text", ["a\x01x\x02b\x01y\x02", "b\x01\x02\x02\x01a\x02a\x01", "ab\x011\x02a\x022", "\x02\x02a\x01é"]
)
def test_all_ways_to_read_properties_agree(text: str) -> None:
    """`select_properties` finds the same properties as `parse_properties`, except for empty values."""
    whole = {name: value for name, value in parse_properties(text).items() if value}

    assert select_properties(text, property_marks(["a", "b", "ab"])) == {
        name: value for name, value in whole.items() if name in ("a", "b", "ab")
    }


def test_properties_of_a_record_are_read_in_place() -> None:
    """This works with either host length and topic length; inconsistent lengths give none."""
    pairs = {"price": "5", "name": "grün"}
    for topic in ("t", "t" * 200):
        for host in (b"\x7f\x00\x00\x01\x00\x00\x00\x00", bytes(20)):
            message = StoredMessage(
                topic=topic, queue_id=0, body=b"body", born_host=host, store_host=host,
                properties_bytes=format_properties(pairs).encode(),
            )  # fmt: skip
            record = encode_record(message, is_sealed=True)
            stored = stored_properties(b"..." + record + b"...", 3)
            assert stored is not None
            assert parse_properties(stored).items() >= pairs.items()

    damaged = bytearray(record)
    damaged[-2 - len(stored or "") :] = b"\x7f\xff" + bytes(len(stored or ""))
    assert stored_properties(bytes(damaged), 0) is None


def test_empty_property_of_a_record_counts_as_absent() -> None:
    """Java's reader of properties does the same. The length of an IN list does not change the weight of a filter."""
    sql = SqlFilter("price > 4 AND note IS NULL")

    assert sql.accepts_encoded("price\x015\x02note\x01\x02")
    assert not sql.accepts_encoded("price\x015\x02note\x01x\x02")
    assert not sql.accepts_encoded("")
    assert sql.names == ("price", "note")
    assert SqlFilter("a IN ('x', 'y', 'z', 'w') AND b = 5").weight == SqlFilter("a IN ('x') AND b = 5").weight


# ------- parsing once


def test_expression_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pull may carry its filter; a fault is cached as well."""
    first = parse_sql_filter("remembered = 5")
    with pytest.raises(ExpressionFault):
        parse_sql_filter("forgotten =")
    monkeypatch.setattr(filter, "read_tokens", None)

    assert parse_sql_filter("remembered = 5") is first
    with pytest.raises(ExpressionFault, match="unexpected end"):
        parse_sql_filter("forgotten =")


def test_filter_cache_is_bounded() -> None:
    """Expressions of clients cannot fill the memory: those that were not used recently are parsed again."""
    first = parse_sql_filter("a = 'first'")
    for number in range(filter.CACHED_CHARACTERS_MAX // 1_000 + 1):
        parse_sql_filter(f"a = '{number:01000d}'")

    assert parse_sql_filter("a = 'first'") is not first
    assert filter._cache._characters <= filter.CACHED_CHARACTERS_MAX


def test_expression_that_two_threads_parse_at_once_is_counted_once() -> None:
    """Each thread of a synchronous client parses filters; both may miss the cache before one of them stores its own."""
    one = parse_sql_filter("twice = 1")
    before = filter._cache._characters

    filter._cache.store("twice = 1", filter.SqlFilter("twice = 1"))

    assert filter._cache._characters == before and parse_sql_filter("twice = 1") is one


def test_expression_that_another_thread_evicts_during_the_lookup_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The eviction happens after a thread has found the expression, and before it marks it as used."""

    class Evicting(OrderedDict[str, filter.SqlFilter | str]):
        def get(self, key: str, default: Any = None) -> Any:
            return self.pop(key, default)

    one = parse_sql_filter("evicted = 1")
    monkeypatch.setattr(filter._cache, "_entries", Evicting(filter._cache._entries))

    assert parse_sql_filter("evicted = 1") is one


def test_expression_type_selects_the_filter() -> None:
    """No type means tags; an unknown type, or an empty SQL expression, is a fault."""
    assert isinstance(parse_filter(None, "a = 5"), TagFilter)
    assert isinstance(parse_filter("TAG", "*"), TagFilter)
    assert isinstance(parse_filter("SQL92", "a = 5"), SqlFilter)
    for expression_type, expression in (("JSON", "a = 5"), ("SQL92", ""), ("SQL92", None), ("sql92", "a = 5")):
        with pytest.raises(ValueError, match=r"."):
            parse_filter(expression_type, expression)
