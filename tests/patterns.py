"""Regular expressions that may take time that grows with the square of a line, by their structure.

Python's `re` backtracks. Take a word `w` repeated n times, and an automaton that can spend `w` in two ways (infinite ambiguity). One
is a loop at state p. The other leads to a state q that loops on `w` as well. If it can fail after q, the time is quadratic. A search
has one such loop before the expression, which skips letters. A repeat of at most LIMIT counts as no loop. This is the criterion
of Weideman et al. (2016), "Analyzing matching time behavior of backtracking regular expression matchers", on position automata.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

LIMIT = 1000  # repeats: more are a loop
LETTERS = tuple(map(chr, range(128))) + tuple("éßµ²–…一━\u2003\x85")
ALL = (1 << len(LETTERS)) - 1
SEARCHES = ("search", "sub", "subn", "findall", "finditer", "split")
Condition = Callable[[str, str], bool]  # of the letter before (empty at the start) and the letter after


_BITS = {ord(letter): 1 << i for i, letter in enumerate(LETTERS)}


def _mask(test: Callable[[str], bool]) -> int:
    return sum(1 << i for i, letter in enumerate(LETTERS) if test(letter))


_CATEGORIES = {
    codes.CATEGORY_DIGIT: _mask(str.isdigit),
    codes.CATEGORY_SPACE: _mask(str.isspace),
    codes.CATEGORY_WORD: _mask(lambda c: c.isalnum() or c == "_"),
}  # fmt: skip
_CATEGORIES |= {
    codes.CATEGORY_NOT_DIGIT: ALL ^ _CATEGORIES[codes.CATEGORY_DIGIT],
    codes.CATEGORY_NOT_SPACE: ALL ^ _CATEGORIES[codes.CATEGORY_SPACE],
    codes.CATEGORY_NOT_WORD: ALL ^ _CATEGORIES[codes.CATEGORY_WORD],
}


@dataclass
class Piece:
    """A part of an expression: whether it may be empty, its first and last positions, and whether an empty end may fail.

    `first` has conditions on the letters around the place where it starts. `sure` are the last positions after which nothing
    else can fail.
    """

    nullable: bool
    surely_nullable: bool
    first: list[tuple[int, tuple[Condition, ...]]] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    sure: list[int] = field(default_factory=list)
    conditions: tuple[Condition, ...] = ()  # of a piece that takes no letter


class Automaton:
    """The positions of an expression and the letters that may follow each other."""

    def __init__(self, pattern: str, flags: int = 0) -> None:
        tree = parser.parse(pattern, flags)
        self.flags = tree.state.flags
        self.masks: list[int] = []
        self.follow: list[set[int]] = []
        self.regions: list[int] = []  # the possessive or atomic part that a position belongs to; 0 for none
        self.nested = False
        self._region = self._num_regions = 0
        self._around_masks: list[int] = []
        self.whole = self._sequence(tree)
        self._reach = [self._after(p) for p in range(len(self.masks))]
        self.loops = [q for q, after in enumerate(self._reach) if q in after]
        if not self.loops:
            return
        alike: dict[tuple[int, ...], int] = {}  # one letter of each set of letters that no part distinguishes
        parts = [*self.masks, *self._around_masks, _CATEGORIES[codes.CATEGORY_WORD], _BITS[ord("\n")]]
        for i in sorted(range(len(LETTERS)), key=lambda i: not LETTERS[i].isalnum()):
            alike.setdefault(tuple(mask >> i & 1 for mask in parts), 1 << i)
        self.masks = [mask & sum(alike.values()) for mask in self.masks]

    def _position(self, mask: int) -> Piece:
        if self.flags & re.IGNORECASE:
            for i, letter in enumerate(LETTERS):
                if letter in string.ascii_letters and mask >> i & 1:
                    mask |= 1 << LETTERS.index(letter.swapcase())
        self.masks.append(mask)
        self.follow.append(set())
        self.regions.append(self._region)
        i = len(self.masks) - 1
        return Piece(False, False, [(i, ())], [i], [i])

    def _join(self, a: Piece, b: Piece) -> Piece:
        for p in a.last:
            self.follow[p] |= {q for q, _ in b.first}
        first = list(a.first)
        if a.nullable:
            first += [(q, a.conditions + conditions) for q, conditions in b.first]
        last = b.last + (a.last if b.nullable else [])
        sure = b.sure + (a.sure if b.surely_nullable else [])
        conditions = a.conditions + b.conditions if a.nullable and b.nullable else ()
        return Piece(a.nullable and b.nullable, a.surely_nullable and b.surely_nullable, first, last, sure, conditions)

    def _sequence(self, items: Any) -> Piece:
        piece = Piece(True, True)
        for code, argument in items:
            piece = self._join(piece, self._item(code, argument))
        return piece

    def _item(self, code: Any, argument: Any) -> Piece:
        if code is codes.LITERAL:
            return self._position(_BITS.get(argument, 0))
        if code is codes.NOT_LITERAL:
            return self._position(ALL ^ _BITS.get(argument, 0))
        if code is codes.ANY:
            return self._position(ALL if self.flags & re.DOTALL else ALL ^ _BITS[ord("\n")])
        if code is codes.IN:
            return self._position(_of_class(argument))
        if code is codes.SUBPATTERN:
            return self._sequence(argument[3])
        if code is codes.ATOMIC_GROUP:
            return self._possessive(lambda: self._sequence(argument))
        if code is codes.BRANCH:
            return _either([self._sequence(branch) for branch in argument[1]])
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            return self._repeat(*argument)
        if code is codes.POSSESSIVE_REPEAT:
            return self._possessive(lambda: self._repeat(*argument))
        if code is codes.AT:
            return Piece(True, False, conditions=(_of_place(argument, self.flags),))
        if code in (codes.ASSERT, codes.ASSERT_NOT):
            return self._around(code is codes.ASSERT, *argument)
        raise NotImplementedError(f"{code} in an expression")

    def _possessive(self, build: Callable[[], Piece]) -> Piece:
        before = self._region
        self._num_regions += 1
        self._region = self._num_regions
        try:
            return build()
        finally:
            self._region = before

    def _repeat(self, least: int, most: int, items: Any) -> Piece:
        is_loop = most is codes.MAXREPEAT or most > LIMIT
        piece = self._sequence(items)
        if is_loop:
            for p in piece.last:
                for q, _ in piece.first:
                    self.nested |= q in self.follow[p]
                    self.follow[p].add(q)
        for _ in range(0 if is_loop else min(most, 2) - 1):  # a second one; more add no loop
            other = self._sequence(items)
            other.nullable |= least < 2
            other.surely_nullable |= least < 2
            piece = self._join(piece, other)
        piece.nullable |= least == 0
        piece.surely_nullable |= least == 0
        return piece

    def _around(self, is_positive: bool, direction: int, items: Any) -> Piece:
        if direction < 0:
            letters = list(items)
            if len(letters) == 1 and letters[0][0] in (codes.IN, codes.LITERAL, codes.NOT_LITERAL):
                code, argument = letters[0]
                mask = _of_class(argument) if code is codes.IN else _BITS.get(argument, 0)
                mask = ALL ^ mask if code is codes.NOT_LITERAL else mask
                self._around_masks.append(mask)
                return Piece(True, False, conditions=(lambda before, _: bool(_is_in(before, mask)) == is_positive,))
            return Piece(True, False)
        inner = self._sequence(items)  # as a part that may be skipped
        return Piece(True, False, inner.first, inner.last, [])

    # -- ambiguity -----------------------------------------------------------------------------------------------------

    def quadratic_words(self, how: str) -> Iterator[str]:
        """Yield words whose repeats take quadratic time; `how` is the method that uses the expression."""
        sure = set() if how == "fullmatch" else set(self.whole.sure)
        if self.nested:
            yield "a nested repeat"
        for q in self.loops:
            if q in sure:
                continue
            if how in SEARCHES and (word := self._of_search(q)) is not None:
                yield word
            for p in self.loops:
                is_final = self.regions[p] and self.regions[p] != self.regions[q]
                if p != q and not is_final and (word := self._of_loops(p, q)) is not None:
                    yield word

    def _after(self, p: int) -> set[int]:
        seen: set[int] = set()
        rest = [p]
        while rest:
            for q in self.follow[rest.pop()]:
                if q not in seen:
                    seen.add(q)
                    rest.append(q)
        return seen

    def _of_search(self, q: int) -> str | None:
        """Return a word that leads from before the expression to q, and from q to q."""
        entries = self.whole.first
        seen: dict[tuple[int | str, int], str] = {("", q): ""}
        rest: list[tuple[int | str, int]] = [("", q)]
        while rest:
            b, c = rest.pop(0)
            word = seen[b, c]
            for c2 in self.follow[c]:
                if isinstance(b, int):
                    steps = [(b2, self.masks[b2] & self.masks[c2]) for b2 in self.follow[b]]
                    moves = [(b2, mask) for b2, mask in steps if mask]
                else:
                    moves = []
                    for i in _bits(self.masks[c2]):
                        letter = LETTERS[i]
                        moves.append((letter, 1 << i))
                        moves += [
                            (b2, 1 << i)
                            for b2, conditions in entries
                            if self.masks[b2] >> i & 1 and all(holds(b, letter) for holds in conditions)
                        ]
                for b2, mask in moves:
                    if (b2, c2) not in seen:
                        seen[b2, c2] = word + LETTERS[_some(mask)]
                        if b2 == q == c2 and self._repeats(word + LETTERS[_some(mask)], q):
                            return seen[b2, c2]
                        rest.append((b2, c2))
        return None

    def _repeats(self, word: str, q: int) -> bool:
        """Return whether the expression can start at a repeat of a word, after the same word, and get to q."""
        before = word[-1]
        now = {
            p
            for p, conditions in self.whole.first
            if _is_in(word[0], self.masks[p]) and all(holds(before, word[0]) for holds in conditions)
        }
        starts = set(now)
        for i in range(1, len(word)):
            now = {r for p in now for r in self.follow[p] if _is_in(word[i], self.masks[r])}
            now |= {
                p
                for p, conditions in self.whole.first
                if _is_in(word[i], self.masks[p]) and all(holds(word[i - 1], word[i]) for holds in conditions)
            }
        return bool(starts or now) and q in now

    def _of_loops(self, p: int, q: int) -> str | None:
        """Return a word that leads from p to p, from p to q, and from q to q."""
        if q not in self._reach[p]:
            return None
        of_p = {r for r in self._reach[p] if p in self._reach[r]}
        of_q = {r for r in self._reach[q] if q in self._reach[r]}
        between = self._reach[p]
        seen = {(p, p, q): ""}
        rest = [(p, p, q)]
        while rest:
            a, b, c = rest.pop(0)
            for a2 in self.follow[a] & of_p:
                for b2 in self.follow[b] & between:
                    for c2 in self.follow[c] & of_q:
                        mask = self.masks[a2] & self.masks[b2] & self.masks[c2]
                        if mask and (a2, b2, c2) not in seen:
                            seen[a2, b2, c2] = seen[a, b, c] + LETTERS[_some(mask)]
                            if (a2, b2, c2) == (p, q, q):
                                return seen[a2, b2, c2]
                            rest.append((a2, b2, c2))
        return None


def quadratic_words(pattern: str, how: str, flags: int = 0) -> list[str]:
    """Return words whose repeats take quadratic time in an expression; none if it takes linear time."""
    return list(dict.fromkeys(Automaton(pattern, flags).quadratic_words(how)))


def _either(pieces: Sequence[Piece]) -> Piece:
    nullable = [piece for piece in pieces if piece.nullable]
    return Piece(
        bool(nullable),
        any(piece.surely_nullable for piece in pieces),
        [pair for piece in pieces for pair in piece.first],
        [p for piece in pieces for p in piece.last],
        [p for piece in pieces for p in piece.sure],
        nullable[0].conditions if len(nullable) == len(pieces) == 1 else (),
    )


def _of_class(items: Sequence[tuple[Any, Any]]) -> int:
    mask, is_negated = 0, False
    for code, argument in items:
        if code is codes.NEGATE:
            is_negated = True
        elif code is codes.LITERAL:
            mask |= _BITS.get(argument, 0)
        elif code is codes.RANGE:
            mask |= sum(bit for letter, bit in _BITS.items() if argument[0] <= letter <= argument[1])
        else:
            mask |= _CATEGORIES[argument]
    return ALL ^ mask if is_negated else mask


def _of_place(code: Any, flags: int) -> Condition:
    word = _CATEGORIES[codes.CATEGORY_WORD]
    if code is codes.AT_BOUNDARY:
        return lambda before, after: _is_in(before, word) != _is_in(after, word)
    if code is codes.AT_NON_BOUNDARY:
        return lambda before, after: _is_in(before, word) == _is_in(after, word)
    if code is codes.AT_BEGINNING and flags & re.MULTILINE:
        return lambda before, _: before in ("", "\n")
    if code in (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING):
        return lambda before, _: before == ""
    return lambda _, after: after == "\n"


def _is_in(letter: str, mask: int) -> bool:
    return bool(letter) and bool(mask >> LETTERS.index(letter) & 1)


def _bits(mask: int) -> Iterator[int]:
    return (i for i in range(len(LETTERS)) if mask >> i & 1)


def _some(mask: int) -> int:
    """Return a letter of a mask, a visible one if possible."""
    bits = list(_bits(mask))
    return next((i for i in bits if LETTERS[i] in string.ascii_letters + string.digits), bits[0])
