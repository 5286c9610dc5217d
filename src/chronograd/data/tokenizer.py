"""A byte-level byte-pair encoding, learned from a text in a second: tokens 0 … 255 are bytes, later ones are pairs of tokens.

A text is first cut into words with the space before them, and no pair crosses a word. Spaces, digits and punctuation are words.
Each merge walks the words that have its pair, so the time grows with the length of words: longer ones, as in DNA or base64, are cut.

Source: Sennrich, Haddow, Birch 2016, arXiv:1508.07909; on bytes as in Radford et al., GPT-2, 2019.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise

NUM_BYTES = 256
# No word of English is longer: "antidisestablishmentarianism" has 28 letters.
_WORD = re.compile(r" ?[^\W\d_]{1,32}| ?\d| ?[^\w\s]{1,32}|\s|_")
# Letters of distinct words from which pairs are learned; a novel has 70,000.
LEARNED_LETTERS = 250_000

Pair = tuple[int, int]


def learn(text: str, vocabulary: int) -> list[Pair]:
    """Return the pairs to merge, in their order: each time the most frequent pair of the text, until the vocabulary is full or
    no pair repeats. Of equally frequent pairs, the one with the smaller numbers is first. Of a text with more than
    `LEARNED_LETTERS` in distinct words, the most frequent words count.

    >>> learn("banana banana", 258)
    [(97, 110), (98, 256)]
    """
    counts = _frequent(Counter(_WORD.findall(text)))
    words, own = [list(word.encode()) for word in counts], list(counts.values())
    frequency, places = Counter[Pair](), defaultdict[Pair, set[int]](set)
    for index, (word, count) in enumerate(zip(words, own, strict=True)):
        _count(word, count, index, frequency, places)
    merges: list[Pair] = []
    while len(merges) < vocabulary - NUM_BYTES:
        most = max(frequency.values(), default=0)
        if most < 2:
            break
        best = min(pair for pair, number in frequency.items() if number == most)
        for index in places.pop(best):
            _count(words[index], -own[index], index, frequency, places)
            words[index] = merged(words[index], best, NUM_BYTES + len(merges))
            _count(words[index], own[index], index, frequency, places)
        del frequency[best]
        merges.append(best)
    return merges


def _frequent(counts: Counter[str]) -> dict[str, int]:
    """Return the most frequent words that have at most `LEARNED_LETTERS` together, in their order."""
    if sum(map(len, counts)) <= LEARNED_LETTERS:
        return counts
    letters = accumulate(len(word) for word, _ in counts.most_common())
    return dict(counts.most_common(sum(total <= LEARNED_LETTERS for total in letters)))


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
