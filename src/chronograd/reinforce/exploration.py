"""Exploration rates of actors: how often each acts at random."""

from __future__ import annotations

from chronograd.errors import InputError
from chronograd.words import how_many


def epsilon_ladder(num_actors: int, epsilon: float = 0.4, alpha: float = 7.0) -> list[float]:
    """Return the constant ε of each Ape-X actor: ε_i = ε^(1 + α · i / (N − 1)). A single actor uses ε.

    Source: Horgan et al., Distributed prioritized experience replay, arXiv 1803.00933, section 4.
    Raises: InputError for fewer than one actor, or ε outside 0 to 1.

    >>> [round(e, 8) for e in epsilon_ladder(8)]
    [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]
    """
    if num_actors < 1 or not 0 <= epsilon <= 1:
        raise InputError(
            f"{how_many(num_actors, 'actors')} with ε = {epsilon}", "give at least one actor, and ε from 0 to 1"
        )
    steps = max(1, num_actors - 1)
    return [float(epsilon ** (1 + alpha * actor / steps)) for actor in range(num_actors)]
