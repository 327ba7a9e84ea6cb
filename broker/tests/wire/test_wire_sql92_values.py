"""Evaluation of filters on properties: unknown, true, false or a fault, as in RocketMQ 5."""

import math

import pytest

from gantry_wire.sql92 import EvaluationFault, SqlFilter
from gantry_wire.sql92.numbers import compare_doubles, parse_double, parse_whole

T, F, U, X = True, False, None, "cannot be judged"


def evaluate(expression: str, **properties: str) -> bool | str | None:
    try:
        return SqlFilter(expression).evaluate(properties)
    except EvaluationFault:
        return X


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("n = 5", U), ("n <> 5", U), ("n > 5", U), ("n BETWEEN 1 AND 5", U), ("n IN ('x')", U), ("n NOT IN ('x')", U),
        ("n", U), ("NOT n", U), ("NULL", U), ("-n > 5", U), ("n IS NULL", T), ("n IS NOT NULL", F), ("a IS NULL", F),
        ("'x' = n", F), ("'x' <> n", T), ("5 > n", U), ("n = m", T), ("n <> m", F), ("a = n", F), ("n = a", U),
        ("n CONTAINS 'x'", F), ("n NOT CONTAINS 'x'", F), ("n = TRUE", U), ("TRUE = n", F), ("(n = 5) IS NULL", T),
        ("(n = 5) = TRUE", U), ("TRUE = (n = 5)", F), ("-n = -m", T), ("NULL IS NULL", T),
    ],
)  # fmt: skip
def test_missing_property_is_unknown(expression: str, wanted: bool | None) -> None:
    """Unknown on the left of `=` gives unknown, on the right false; two unknowns are equal; searches give false."""
    assert evaluate(expression, a="5") is wanted


@pytest.mark.parametrize(
    ("left", "right", "conjunction", "disjunction"),
    [
        ("TRUE", "TRUE", T, T), ("TRUE", "FALSE", F, T), ("TRUE", "NULL", U, T), ("FALSE", "FALSE", F, F),
        ("FALSE", "NULL", F, U), ("NULL", "NULL", U, U), ("FALSE", "TRUE", F, T), ("NULL", "TRUE", U, T),
        ("NULL", "FALSE", F, U),
    ],
)  # fmt: skip
def test_logic_has_three_values(left: str, right: str, conjunction: bool | None, disjunction: bool | None) -> None:
    """A false operand decides AND and a true one decides OR, whether or not another is unknown."""
    assert evaluate(f"{left} AND {right}") is conjunction
    assert evaluate(f"{left} OR {right}") is disjunction
    assert evaluate(f"TRUE AND {left} AND {right}") is conjunction
    assert evaluate(f"FALSE OR {left} OR {right}") is disjunction


def test_not_of_unknown_is_unknown() -> None:
    """NOT inverts true and false, and keeps unknown."""
    assert [evaluate(f"NOT {word}") for word in ("TRUE", "FALSE", "NULL")] == [F, T, U]


def test_decided_operator_does_not_evaluate_its_right() -> None:
    """Evaluation is from left to right and stops when the result is known; an earlier fault decides."""
    assert evaluate("a = 'x' OR a > 5", a="x") is T
    assert evaluate("a = 'y' AND a > 5", a="x") is F
    assert evaluate("a > 5 OR a = 'x'", a="x") is X
    assert evaluate("n > 5 AND a > 5", a="x") is X
    assert evaluate("n > -(a > 5)", a="x") is U


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("5", (T, T, T)), ("+5", (T, T, T)), ("005", (T, T, T)), ("5.0", (X, X, T)), (" 5", (X, X, T)), ("5f",
        (X, X, T)),
        ("x", (X, X, X)), ("", (X, X, X)), ("-", (X, X, X)), ("\u0665", (T, T, X)), ("\uff15", (T, T, X)),
        ("\U0001d7d3", (X, X, X)), ("2147483648", (X, T, T)), ("9223372036854775808", (X, X, T)), ("-1", (F, F, F)),
        ("-2147483648", (F, F, F)), ("-2147483649", (X, F, F)), ("-9223372036854775809", (X, X, F)), ("NaN", (X, X, T)),
        ("Infinity", (X, X, T)), ("0x1p4", (X, X, T)), ("1_0", (X, X, X)), ("1e1", (X, X, T)),
    ],
)  # fmt: skip
def test_text_must_be_a_number_of_the_same_type(text: str, verdicts: tuple[object, ...]) -> None:
    """A text compared with an Integer, Long or Double must be one; otherwise the message cannot be evaluated."""
    assert evaluate("4 < a", a=text) is verdicts[0]
    assert evaluate("a > 4", a=text) is verdicts[0]
    assert evaluate("a <> 2147483649", a=text) is (X if verdicts[1] is X else T)
    assert evaluate("a > 4.5", a=text) is verdicts[2]


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("a = '5'", T), ("a = 5", T), ("a = 5.0", T), ("5 = a", T), ("a <> 6", T), ("a = 'x'", F), ("a >= 5", T),
        ("a > 5", F), ("a < 5.5", T), ("a <= 4.9", F), ("a BETWEEN 5 AND 5", T), ("a NOT BETWEEN 6 AND 1", T),
        ("a BETWEEN b AND 9", X), ("a BETWEEN c AND 9", T), ("a BETWEEN n AND 4", F), ("a NOT BETWEEN n AND 4", T),
        ("a > c", T), ("a > b", X), ("b > a", X), ("a = c", F), ("c = 4.0", T), ("c = 4", X), ("5 BETWEEN c AND a", X),
        ("5.5 BETWEEN c AND 6", T),
        ("2147483648 > a", T), ("5 = 5.0", T), ("5 = 5L", T), ("9007199254740993 = 9007199254740992.0", T),
        ("a = 5 AND d = 9007199254740993.0", T), ("5 > 4.5", T), ("'x' = 'x'", T), ("'5' = 5", T), ("5 = '5'", T),
        ("'x' = 5", X), ("-a > 5", U), ("-5 < a", T), ("a > -5", T), ("- -5 = 5", T), ("-TRUE IS NULL", T),
    ],
)  # fmt: skip
def test_numbers_are_compared(expression: str, wanted: object) -> None:
    """Two texts are equal by their characters, and ordered as Doubles; -property is never a number."""
    assert evaluate(expression, a="5", b="x", c="4.0", d="9007199254740992") is wanted


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("a", F), ("NOT a", T), ("a AND TRUE", F), ("a = TRUE", T), ("b = TRUE", F), ("b = FALSE", T), ("TRUE = a", X),
        ("FALSE <> a", X), ("a <> TRUE", F), ("TRUE = TRUE", T), ("TRUE = FALSE", F), ("1 = TRUE", F), ("1 <> TRUE", T),
        ("'true' = TRUE", T), ("(a = 'TrUe') = 1", F), ("(a = 'TrUe') = 'true'", X), ("(a = 'x') = (b = 'x')", F),
        ("1.5 = TRUE", F),
    ],
)  # fmt: skip
def test_properties_as_conditions(expression: str, wanted: object) -> None:
    """A property alone is false with any value; as the left of `= TRUE` its text is compared."""
    assert evaluate(expression, a="TrUe", b="x") is wanted


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("b CONTAINS 'bc'", T), ("b CONTAINS 'x'", F), ("b NOT CONTAINS 'x'", T), ("b STARTSWITH 'ab'", T),
        ("b STARTSWITH 'bc'", F), ("b NOT STARTSWITH 'bc'", T), ("b ENDSWITH 'bc'", T), ("b NOT ENDSWITH 'bc'", F),
        ("b CONTAINS ''", F), ("b NOT CONTAINS ''", F), ("b STARTSWITH ''", F), ("b NOT ENDSWITH ''", F),
        ("5 CONTAINS '5'", F), ("5 NOT CONTAINS '5'", F), ("'abc' CONTAINS 'b'", T), ("(b = 'abc') CONTAINS 'T'", F),
        ("(b > 5) CONTAINS ''", F), ("(b > 5) CONTAINS 'x'", X), ("b CONTAINS 'BC'", F), ("-b CONTAINS 'b'", F),
        ("b IN ('abc')", T), ("b IN ('x','y')", F), ("b NOT IN ('x','y')", T), ("b NOT IN ('abc')", F),
        ("b IN ('ABC')", F),
        ("b IN ('1','2','3','4','5','6','abc')", T), ("+b IN ('abc')", T),
    ],
)  # fmt: skip
def test_texts_are_searched(expression: str, wanted: object) -> None:
    """An empty search text gives false without evaluating the operand, with NOT too; case matters."""
    assert evaluate(expression, b="abc") is wanted


def test_only_a_true_result_matches() -> None:
    """A message with a fault or an unknown result does not match."""
    sql = SqlFilter("a > 5")

    assert [sql.accepts(one) for one in ({"a": "6"}, {"a": "5"}, {"a": "x"}, {})] == [True, False, False, False]


# ------- numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5.0), ("-.5", -0.5), ("5.", 5.0), ("+1e3", 1000.0), ("1E-2d", 0.01), ("1f", 1.0), ("\x00 7 \n", 7.0),
        ("1e999", math.inf), ("-1e999", -math.inf), ("Infinity", math.inf), ("-Infinity", -math.inf), ("0x.8p1", 1.0),
        ("-0X1Fp-1D", -15.5), ("0x1p99999", math.inf), ("-0x1p99999", -math.inf), ("0x1p-99999", 0.0), ("0x0p9", 0.0),
        ("1e-999", 0.0), ("4.9e-324", 5e-324), ("9" * 400, math.inf), ("00012", 12.0),
    ],
)  # fmt: skip
def test_java_s_doubles(text: str, number: float) -> None:
    """Signs, points, exponents, suffixes, hexadecimal, and characters up to the blank at both ends."""
    assert parse_double(text) == number


@pytest.mark.parametrize(
    "text",
    ["", " ", ".", "+", "e5", "5e", "5e+", "nan", "inf", "infinity", "NaNf", "5dd", "5L", "0x1", "0xp1", "0x.p1", "1_0",
     "1,0", "1 2", "\u0665", "\u00a05", "5\u3000", "--5", "+-5", "\u221e"],
)  # fmt: skip
def test_text_that_is_no_java_double_is_refused(text: str) -> None:
    """Texts that Python accepts and Java does not are no numbers here."""
    with pytest.raises(EvaluationFault):
        parse_double(text)


def test_not_a_number_is_the_greatest() -> None:
    """Java orders all Doubles: -0.0 is below 0.0, NaN is above everything and equal to itself."""
    ordered = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan]

    for low, left in enumerate(ordered):
        for high, right in enumerate(ordered):
            order = compare_doubles(left, right)
            assert (order > 0) - (order < 0) == (low > high) - (low < high)
    assert evaluate("a < b", a="-0.0", b="0.0") is T
    assert evaluate("a > 1e300", a="NaN") is T
    assert evaluate("a >= b", a="NaN", b="NaN") is T


def test_whole_numbers_of_any_length() -> None:
    """Leading zeroes cost nothing, and a text of 30,000 digits is refused without being computed."""
    assert parse_whole("0" * 30_000 + "5", 1) == 5
    with pytest.raises(EvaluationFault):
        parse_whole("9" * 30_000, 2**40)
