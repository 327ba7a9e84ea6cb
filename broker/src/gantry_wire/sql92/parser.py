"""From words to a term, by recursive descent: one method for each rule of RocketMQ's grammar.

    either      := both {OR both}
    both        := equal {AND equal}
    equal       := compared {('=' | '<>') compared | IS [NOT] NULL}
    compared    := signed {relation}
    relation    := ('>' | '>=' | '<' | '<=') signed
                 | [NOT] ('CONTAINS' | 'STARTSWITH' | 'ENDSWITH') text
                 | [NOT] BETWEEN signed AND signed | [NOT] IN '(' text {',' text} ')'
    signed      := {'+' | '-' | NOT} primary
    primary     := literal | name | '(' either ')'

NOT binds closer than `=`: `NOT a = 1` asks whether (NOT a) is 1. The grammar does not ask for the end of the text, so
whatever follows a whole expression is ignored, but for its first word, which must be one.
"""

from typing import Final, final

from gantry_wire.sql92 import terms
from gantry_wire.sql92.errors import ExpressionFault
from gantry_wire.sql92.limits import NESTING_MAX
from gantry_wire.sql92.terms import Term
from gantry_wire.sql92.tokens import Token, Word, text_of

_COMPARISONS: Final = frozenset(("<", "<=", ">", ">="))
_SEARCHES: Final = frozenset(("CONTAINS", "STARTSWITH", "ENDSWITH"))
_RELATIONS: Final = _COMPARISONS | _SEARCHES | {"NOT", "BETWEEN", "IN"}
_SIGNS: Final = frozenset(("+", "-", "NOT"))
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}


@final
class Parser:
    """Reads one expression, once."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._brackets = 0
        self.names: dict[str, None] = {}
        """Properties that were named, in the order of the text."""
        self.listed = 0
        """Texts of lists; a message is looked up in a list, whatever its length."""

    @property
    def next(self) -> Token:
        """The word after what was read."""
        return self._tokens[self._at]

    def condition(self) -> Term:
        """The whole expression. Raises ExpressionFault."""
        term = terms.boolean(self._either())
        if self.next.kind == Word.BAD:
            raise _unexpected(self.next)
        return term

    def _either(self) -> Term:
        operands = [self._both()]
        while self._take("OR"):
            operands.append(self._both())
        return terms.any_of(operands) if len(operands) > 1 else operands[0]

    def _both(self) -> Term:
        operands = [self._equal()]
        while self._take("AND"):
            operands.append(self._equal())
        return terms.all_of(operands) if len(operands) > 1 else operands[0]

    def _equal(self) -> Term:
        left = self._compared()
        while True:
            if self._take("="):
                left = terms.equality(left, self._compared())
            elif self._take("<>"):
                left = terms.inverse(terms.equality(left, self._compared()))
            elif self._take("IS"):
                is_negated = self._take("NOT")
                self._demand("NULL")
                left = terms.inverse(terms.is_null(left)) if is_negated else terms.is_null(left)
            else:
                return left

    def _compared(self) -> Term:
        left = self._signed()
        while self.next.kind in _RELATIONS:
            left = self._relation(left)
        return left

    def _relation(self, left: Term) -> Term:
        word = self._step().kind
        if word in _COMPARISONS:
            return terms.comparison(word, left, self._signed())
        is_negated = word == "NOT"
        token = self.next
        if is_negated:
            word = self._step().kind
        if word in _SEARCHES:
            return terms.search(word, left, self._text(), is_negated=is_negated)
        if word == "BETWEEN":
            low = self._signed()
            self._demand("AND")
            high = self._signed()
            return terms.outside(left, low, high) if is_negated else terms.between(left, low, high)
        if word == "IN":
            return terms.membership(left, self._texts(), is_negated=is_negated)
        raise _unexpected(token)

    def _signed(self) -> Term:
        signs: list[str] = []
        while self.next.kind in _SIGNS:
            signs.append(self._step().kind)
        term = self._primary()
        for sign in reversed(signs):
            if sign == "-":
                term = terms.negation(term)
            elif sign == "NOT":
                term = terms.inverse(term)
        return term

    def _primary(self) -> Term:
        token = self._step()
        match token.kind:
            case Word.TEXT:
                return terms.literal(text_of(token.text))
            case Word.WHOLE:
                return terms.whole_literal(token.text)
            case Word.FRACTION:
                return terms.fraction_literal(token.text)
            case "TRUE" | "FALSE" | "NULL":
                return terms.literal(_CONSTANTS[token.kind])
            case Word.NAME:
                self.names[token.text] = None
                return terms.property_term(token.text)
            case "(":
                return self._bracketed()
        raise _unexpected(token)

    def _bracketed(self) -> Term:
        self._brackets += 1
        if self._brackets > NESTING_MAX:
            raise ExpressionFault(f"brackets are more than {NESTING_MAX} deep")
        term = self._either()
        self._demand(")")
        self._brackets -= 1
        return term

    def _texts(self) -> list[str]:
        self._demand("(")
        texts = [self._text()]
        while self._take(","):
            texts.append(self._text())
        self._demand(")")
        self.listed += len(texts)
        return texts

    def _text(self) -> str:
        return text_of(self._demand(Word.TEXT).text)

    def _step(self) -> Token:
        token = self._tokens[self._at]
        if token.kind != Word.END:
            self._at += 1
        return token

    def _take(self, kind: str) -> bool:
        if self.next.kind != kind:
            return False
        self._at += 1
        return True

    def _demand(self, kind: str) -> Token:
        if self.next.kind != kind:
            raise _unexpected(self.next, kind)
        return self._step()


def _unexpected(token: Token, wanted: str = "") -> ExpressionFault:
    found = "the text ends" if token.kind == Word.END else f"{token.text[:64]!r} stands"
    hope = f"; {wanted} was expected" if wanted else ""
    return ExpressionFault(f"{found} at character {token.start + 1}{hope}")
