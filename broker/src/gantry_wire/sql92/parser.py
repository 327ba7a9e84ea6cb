"""The parser of filters, by recursive descent: one method for each rule of RocketMQ's grammar.

    disjunction := conjunction {OR conjunction}
    conjunction := equality {AND equality}
    equality    := comparison {('=' | '<>') comparison | IS [NOT] NULL}
    comparison  := operand {relation}
    relation    := ('>' | '>=' | '<' | '<=') operand
                 | [NOT] ('CONTAINS' | 'STARTSWITH' | 'ENDSWITH') text
                 | [NOT] BETWEEN operand AND operand | [NOT] IN '(' text {',' text} ')'
    operand     := {'+' | '-' | NOT} primary
    primary     := literal | name | '(' disjunction ')'

NOT binds closer than `=`: `NOT a = 1` compares (NOT a) with 1. The grammar does not require the end of the text, so
everything after a complete expression is ignored, except that its first token must be valid.
"""

from typing import Final, final

from gantry_wire.sql92 import terms
from gantry_wire.sql92.errors import ExpressionFault
from gantry_wire.sql92.limits import NESTING_MAX
from gantry_wire.sql92.terms import Term
from gantry_wire.sql92.tokens import Token, TokenKind, unquote_text

_COMPARISONS: Final = frozenset(("<", "<=", ">", ">="))
_SEARCHES: Final = frozenset(("CONTAINS", "STARTSWITH", "ENDSWITH"))
_RELATIONS: Final = _COMPARISONS | _SEARCHES | {"NOT", "BETWEEN", "IN"}
_SIGNS: Final = frozenset(("+", "-", "NOT"))
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}


@final
class Parser:
    """A parser for one expression. It is used once."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._brackets = 0
        self.names: dict[str, None] = {}
        """The properties that were used, in the order of the text."""
        self.list_texts_count = 0
        """The number of texts in lists. A message is looked up in a list, so they do not count as cost."""

    @property
    def next(self) -> Token:
        """Return the token after those that were read."""
        return self._tokens[self._position]

    def condition(self) -> Term:
        """Return the term for the whole expression. Raises ExpressionFault."""
        term = terms.as_condition(self._disjunction())
        if self.next.kind == TokenKind.INVALID:
            raise _unexpected(self.next)
        return term

    def _disjunction(self) -> Term:
        operands = [self._conjunction()]
        while self._accept("OR"):
            operands.append(self._conjunction())
        return terms.any_of(operands) if len(operands) > 1 else operands[0]

    def _conjunction(self) -> Term:
        operands = [self._equality()]
        while self._accept("AND"):
            operands.append(self._equality())
        return terms.all_of(operands) if len(operands) > 1 else operands[0]

    def _equality(self) -> Term:
        left = self._comparison()
        while True:
            if self._accept("="):
                left = terms.equality(left, self._comparison())
            elif self._accept("<>"):
                left = terms.inverse(terms.equality(left, self._comparison()))
            elif self._accept("IS"):
                is_negated = self._accept("NOT")
                self._expect("NULL")
                left = terms.inverse(terms.is_null(left)) if is_negated else terms.is_null(left)
            else:
                return left

    def _comparison(self) -> Term:
        left = self._operand()
        while self.next.kind in _RELATIONS:
            left = self._relation(left)
        return left

    def _relation(self, left: Term) -> Term:
        word = self._advance().kind
        if word in _COMPARISONS:
            return terms.comparison(word, left, self._operand())
        is_negated = word == "NOT"
        token = self.next
        if is_negated:
            word = self._advance().kind
        if word in _SEARCHES:
            return terms.search(word, left, self._text(), is_negated=is_negated)
        if word == "BETWEEN":
            low = self._operand()
            self._expect("AND")
            high = self._operand()
            return terms.outside(left, low, high) if is_negated else terms.between(left, low, high)
        if word == "IN":
            return terms.membership(left, self._texts(), is_negated=is_negated)
        raise _unexpected(token)

    def _operand(self) -> Term:
        signs: list[str] = []
        while self.next.kind in _SIGNS:
            signs.append(self._advance().kind)
        term = self._primary()
        for sign in reversed(signs):
            if sign == "-":
                term = terms.negation(term)
            elif sign == "NOT":
                term = terms.inverse(term)
        return term

    def _primary(self) -> Term:
        token = self._advance()
        match token.kind:
            case TokenKind.TEXT:
                return terms.literal(unquote_text(token.text))
            case TokenKind.WHOLE:
                return terms.whole_literal(token.text)
            case TokenKind.FRACTION:
                return terms.fraction_literal(token.text)
            case "TRUE" | "FALSE" | "NULL":
                return terms.literal(_CONSTANTS[token.kind])
            case TokenKind.NAME:
                self.names[token.text] = None
                return terms.property_term(token.text)
            case "(":
                return self._parenthesized()
        raise _unexpected(token)

    def _parenthesized(self) -> Term:
        self._brackets += 1
        if self._brackets > NESTING_MAX:
            raise ExpressionFault(f"brackets are nested more than {NESTING_MAX} deep; remove some of them")
        term = self._disjunction()
        self._expect(")")
        self._brackets -= 1
        return term

    def _texts(self) -> list[str]:
        self._expect("(")
        texts = [self._text()]
        while self._accept(","):
            texts.append(self._text())
        self._expect(")")
        self.list_texts_count += len(texts)
        return texts

    def _text(self) -> str:
        return unquote_text(self._expect(TokenKind.TEXT).text)

    def _advance(self) -> Token:
        token = self._tokens[self._position]
        if token.kind != TokenKind.END:
            self._position += 1
        return token

    def _accept(self, kind: str) -> bool:
        if self.next.kind != kind:
            return False
        self._position += 1
        return True

    def _expect(self, kind: str) -> Token:
        if self.next.kind != kind:
            raise _unexpected(self.next, kind)
        return self._advance()


def _unexpected(token: Token, wanted: str = "") -> ExpressionFault:
    found = "end of the filter" if token.kind == TokenKind.END else repr(token.text[:64])
    expectation = f"; expected {wanted}" if wanted else ""
    return ExpressionFault(f"unexpected {found} at character {token.start + 1}{expectation}")
