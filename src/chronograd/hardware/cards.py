"""Names that several cards share, such as `a100`: the card that a name means, in words."""

from __future__ import annotations

from chronograd.hardware import catalog
from chronograd.words import listed


def assumed_card(name: str) -> str:
    """Return the card that a name of several cards means, and the others; empty for the name of one card.

    >>> assumed_card("a100")
    'a100 is the NVIDIA A100 SXM4 40 GB (a100-40), not a100-80, a100-80-pcie or a100-pcie (--on)'
    >>> assumed_card("a100-40"), assumed_card("v100")
    ('', '')
    """
    cards = catalog.variants(name)
    if len(cards) == 1 or name == cards[0].name:
        return ""
    return f"{name} is the {cards[0].title} ({cards[0].name}), not {listed([card.name for card in cards[1:]], 'or')} (--on)"
