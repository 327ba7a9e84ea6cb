"""The grammar of SQL92 filters: valid expressions, the precedence of operators, and expressions that are refused."""

import pytest

from gantry_wire.sql92 import (
    EXPRESSION_CHARACTERS_MAX,
    EXPRESSION_TOKENS_MAX,
    NESTING_MAX,
    ExpressionFault,
    SqlFilter,
)

PROPERTIES = {"a": "5", "b": "abc", "c": "10", "TAGS": "red"}


def evaluate(expression: str, **properties: str) -> bool | None:
    return SqlFilter(expression).evaluate(properties or PROPERTIES)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("a = 5 OR b = 'x' AND b = 'y'", True),
        ("(a = 5 OR b = 'x') AND b = 'y'", False),
        ("a = 6 OR a = 7 OR a = 5", True),
        ("NOT (a = 5) OR a = 5", True),
        ("NOT a = FALSE", False),
        ("NOT a = TRUE", True),
        ("NOT NOT (a = 5)", True),
        ("a = 5 = TRUE", True),
        ("a = 5 <> FALSE", True),
        ("a BETWEEN 1 AND 5 AND c = 10", True),
        ("a > 1 = TRUE", True),
        ("a = - - 5", True),
        ("a = +5 AND +a = 5 AND a > -+-4", True),
        ("((a)) IN ('5')", True),
    ],
)
def test_operators_bind_as_in_rocketmq(expression: str, wanted: bool) -> None:
    """OR binds weakest, then AND, equality, comparisons, and signs with NOT: `NOT a = TRUE` compares (NOT a)."""
    assert evaluate(expression) is wanted


@pytest.mark.parametrize(
    "expression",
    [
        "a=5", "a\t=\n5", "a = 5 -- and so on\n", "-- first\r\na = 5", "/* one */ a /* ** */ = /*/ */ 5",
        "A is null", "a iS nOt NuLl", "b startsWith 'a'", "TAGS = 'red'", "a = 5L", "a = 5l", "a = 5.", "a = 5e0",
        "a = 00.5e1", "$x is null", "_x IS NULL", "x$_1 IS NULL",
    ],
)  # fmt: skip
def test_spelling_variants_are_accepted(expression: str) -> None:
    """Keywords may have any case, names keep theirs; blanks and comments may be anywhere between tokens."""
    assert evaluate(expression) is True


@pytest.mark.parametrize(
    "expression",
    [
        "", " ", "-- only a comment\n", "a =", "= 5", "a = 5 AND", "a = 5 OR OR a = 6", "(a = 5", "a = (5", "a IN ()",
        "a IN ('x',)", "a IN 'x'", "a IN (5)", "a IN (b)", "a BETWEEN 1", "a BETWEEN 1 OR 5", "a IS", "a IS 5",
        "a IS NOT",
        "a NOT = 5", "a CONTAINS b", "a CONTAINS 5", "a NOT", "a ! 5", "a == 5", "a = 'x", "'x", "a = 5 #",
        "a = 5 /* open", "a = 5 'open", "\u00e9 = 5", "a = 5 \u00a0", "\u212a = 5", "a = 5 AND #",
    ],
)  # fmt: skip
def test_invalid_expression_is_refused(expression: str) -> None:
    """A fault is found at the subscription, not when a message arrives."""
    with pytest.raises(ExpressionFault):
        SqlFilter(expression)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("a = NULL", "IS NULL"),
        ("NULL <> a", "IS NULL"),
        ("TRUE = 'x'", "cannot be compared with the literal"),
        ("FALSE = 5", "cannot be compared with the literal"),
        ("a > 'x'", "numbers and properties"),
        ("a < TRUE", "numbers and properties"),
        ("a >= NULL", "numbers and properties"),
        ("(a = 5) > 5", "numbers and properties"),
        ("1 < a < 9", "numbers and properties"),
        ("a BETWEEN 'x' AND 'y'", "numbers and properties"),
        ("a BETWEEN 5 AND 1", "wrong order"),
        ("a BETWEEN 3 AND 2.5", "wrong order"),
        ("a BETWEEN NULL AND 5", "bound of BETWEEN is NULL"),
        ("a BETWEEN 1 AND 'x'", "no whole number"),
        ("5", "expected a condition"),
        ("'x'", "expected a condition"),
        ("-a", "expected a condition"),
        ("NOT 5", "expected a condition"),
        ("a = 5 AND 'x'", "expected a condition"),
        ("5 IN ('x')", "must be a property"),
        ("NOT a IN ('x')", "must be a property"),
        ("-a IN ('x')", "must be a property"),
        ("a = 9223372036854775808", "too large"),
        ("a = 99999999999999999999999999L", "too large"),
        ("a = 1e400", "between"),
        ("a = 0.0", "between"),
        ("a = 1e-400", "between"),
    ],
)
def test_incomparable_operands_are_refused(expression: str, why: str) -> None:
    """RocketMQ checks operands while parsing, and its oddities are kept: 0.0 is too small for a number."""
    with pytest.raises(ExpressionFault, match=why):
        SqlFilter(expression)


@pytest.mark.parametrize(
    ("expression", "ignored"),
    [
        ("a = 5 b = 6", "b = 6"),
        ("a = 5 )", ")"),
        ("a = 007", "07"),
        ("a = 0L AND b = 'x'", "L AND b = 'x'"),
        ("a = 5 LIKE #", "LIKE #"),
        ("a = 5 -- unended", "-- unended"),
        ("a = 5", ""),
        ("a = 5 ", ""),
    ],
)
def test_text_after_an_expression_is_ignored_and_reported(expression: str, ignored: str) -> None:
    """The grammar does not require an end, so brokers must accept such text; the client refuses it by `ignored`."""
    assert SqlFilter(expression).ignored == ignored


def test_two_hyphens_without_an_end_of_line_are_signs() -> None:
    """A line comment ends with its line; without that it is no comment."""
    assert evaluate("a = --5") is True
    assert evaluate("a = --5\n6") is False


def test_quotes_are_doubled() -> None:
    """A quote within a text is doubled, and every other character is literal."""
    assert evaluate("b = 'it''s -- /* a text */'", b="it's -- /* a text */") is True
    assert evaluate("b = ''''", b="'") is True
    assert evaluate("b = ''", b="") is True


def test_fault_gives_the_position() -> None:
    """The message of a fault contains the position in the expression."""
    with pytest.raises(ExpressionFault, match=r"unexpected 'AND' at character 7"):
        SqlFilter("a >=  AND b = 'x'")
    with pytest.raises(ExpressionFault, match=r"unexpected end of the filter at character 12; expected \)"):
        SqlFilter("(a IS NULL ")


# ------- limits


def test_filter_of_the_maximum_size_is_accepted() -> None:
    """A list of a thousand texts is accepted, and so is a deep or long filter up to the limits."""
    texts = ",".join(f"'{number}'" for number in range(1_000))
    assert evaluate(f"a IN ({texts})") is True
    assert evaluate("(" * NESTING_MAX + "a = 5" + ")" * NESTING_MAX) is True
    assert evaluate("NOT " * (NESTING_MAX - 1) + "(a = 6)") is (NESTING_MAX % 2 == 0)
    assert evaluate(" OR ".join(["a = 6"] * (EXPRESSION_TOKENS_MAX // 4))) is False


@pytest.mark.parametrize(
    "expression",
    [
        "(" * (NESTING_MAX + 1) + "a = 5" + ")" * (NESTING_MAX + 1),
        "(" * 100_000,
        "NOT " * NESTING_MAX + "(a = 5)",
        "- " * 500 + "a > 5",
        "a" + " IS NULL" * (NESTING_MAX + 1),
        "a" + " IS NULL" * 1_000,
        " OR ".join(["a = 6"] * EXPRESSION_TOKENS_MAX),
        "a = '" + "x" * EXPRESSION_CHARACTERS_MAX + "'",
    ],
    ids=["brackets", "open brackets", "NOT", "signs", "rows", "long rows", "words", "characters"],
)
def test_a_filter_beyond_the_limits_is_refused(expression: str) -> None:
    """No expression of a client makes the broker recurse or scan without bound."""
    with pytest.raises(ExpressionFault):
        SqlFilter(expression)


def test_the_deepest_filter_of_nested_kinds_is_evaluated() -> None:
    """With brackets within sequences within brackets the depth counts over all of them."""
    expression = "a = 5"
    for _ in range(NESTING_MAX - 1):
        expression = f"({expression}) IS NULL"
    assert evaluate(expression) is False
    with pytest.raises(ExpressionFault, match="nested more than"):
        SqlFilter(f"({expression}) IS NULL IS NULL")
