"""A byte-level byte-pair encoding, learned from a text in a second: tokens 0 … 255 are bytes, later ones are pairs of tokens.

A text is first cut into words with the space before them, and no pair crosses a word. Spaces, digits and punctuation are words.

Source: Sennrich, Haddow, Birch 2016, arXiv:1508.07909; on bytes as in Radford et al., GPT-2, 2019.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

NUM_BYTES = 256
_WORD = re.compile(r" ?[^\W\d_]+| ?\d| ?[^\w\s]+|\s|_")

Pair = tuple[int, int]


def learn(text: str, vocabulary: int) -> list[Pair]:
    """Return the pairs to merge, in their order: each time the most frequent pair of the text, until the vocabulary is full or
    no pair repeats. Of equally frequent pairs, the one with the smaller numbers is first.

    >>> learn("banana banana", 258)
    [(97, 110), (98, 256)]
    """
    counts = Counter(_WORD.findall(text))
    words, own = [list(word.encode()) for word in counts], list(counts.values())
    frequency, places = Counter[Pair](), defaultdict[Pair, set[int]](set)
    for index, (word, count) in enumerate(zip(words, own, strict=True)):
        _count(word, count, index, frequency, places)
    merges: list[Pair] = []
    while len(merges) < vocabulary - NUM_BYTES:
        best = max(frequency, key=lambda pair: (frequency[pair], (-pair[0], -pair[1])), default=None)
        if best is None or frequency[best] < 2:
            break
        for index in places.pop(best):
            _count(words[index], -own[index], index, frequency, places)
            words[index] = merged(words[index], best, NUM_BYTES + len(merges))
            _count(words[index], own[index], index, frequency, places)
        del frequency[best]
        merges.append(best)
    return merges


def _count(word: Sequence[int], count: int, index: int, frequency: Counter[Pair], places: dict[Pair, set[int]]) -> None:
    for pair in pairwise(word):
        frequency[pair] += count
        places[pair].add(index)


def merged(word: Sequence[int], pair: Pair, token: int) -> list[int]:
    """Return a word with every such pair replaced by a token, from left to right.

    >>> merged([1, 1, 1, 2], (1, 1), 9)
    [9, 1, 2]
    """
    out: list[int] = []
    at = 0
    while at < len(word):
        is_pair = tuple(word[at : at + 2]) == pair
        out.append(token if is_pair else word[at])
        at += 1 + is_pair
    return out


def encode(text: str, merges: Sequence[Pair]) -> list[int]:
    """Return the tokens of a text.

    >>> encode("bananas", [(97, 110), (256, 97)])
    [98, 256, 257, 115]
    """
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    known: dict[str, list[int]] = {}
    for text_word in (words := _WORD.findall(text)):
        if text_word not in known:
            word = list(text_word.encode())
            while pairs := [pair for pair in pairwise(word) if pair in ranks]:
                first = min(pairs, key=ranks.__getitem__)
                word = merged(word, first, NUM_BYTES + ranks[first])
            known[text_word] = word
    return [token for word in words for token in known[word]]


def token_bytes(merges: Sequence[Pair]) -> list[int]:
    """Return the number of bytes of each token.

    >>> token_bytes([(97, 110), (256, 97)])[255:]
    [1, 2, 3]
    """
    sizes = [1] * NUM_BYTES
    for first, second in merges:
        sizes.append(sizes[first] + sizes[second])
    return sizes
