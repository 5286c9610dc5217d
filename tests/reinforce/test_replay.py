"""Replay compared with brute force: a list of all transitions, with explicit probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from chronograd.errors import InputError
from chronograd.reinforce.agent import epsilon_ladder
from chronograd.reinforce.replay import (
    Minibatch,
    NStep,
    ProportionalReplay,
    RankBasedReplay,
    Replay,
    Transitions,
    UniformReplay,
)
from chronograd.reinforce.replay.prioritised import importance_weights, stratified
from chronograd.reinforce.replay.sharded import split_shares
from chronograd.reinforce.replay.storage import Frames
from chronograd.reinforce.replay.sum_tree import SumTree

KINDS: dict[str, Callable[..., Any]] = {
    "uniform": UniformReplay,
    "proportional": ProportionalReplay,
    "rank-based": RankBasedReplay,
}
# A χ² test of correct frequencies fails with this probability; fixed seeds make it deterministic.
MIN_P = 1e-3


def numbered(numbers: Any) -> Transitions:
    """Return distinct transitions: every field contains the number."""
    of = np.asarray(numbers, np.int64)
    return Transitions(
        observation=np.stack([of, 2 * of], 1).astype(np.float32),
        action=of % 3,
        reward=of.astype(np.float32),
        next_observation=np.stack([of + 1, of], 1).astype(np.float32),
        discount=(of % 2).astype(np.float32),
    )


def is_whole(transitions: Transitions) -> bool:
    """Return whether all fields of each belong to the same transition."""
    again = numbered(transitions.reward)
    return all(np.array_equal(getattr(transitions, name), getattr(again, name)) for name in Transitions.__slots__)


def draw_counts(replay: Any, times: int, batch: int = 1, seed: int = 0) -> Counter[int]:
    """Return how often each number is drawn."""
    rng = np.random.default_rng(seed)
    counts: Counter[int] = Counter()
    for number in range(times):
        sample = replay.sample(batch, rng)
        assert number >= 10 or is_whole(sample.transitions)
        counts.update(sample.transitions.reward.astype(int).tolist())
    return counts


def p_value(counts: Counter[int], probabilities: dict[int, float]) -> float:
    assert set(counts) <= set(probabilities)
    whole = sum(counts.values())
    seen = [counts[number] for number in probabilities]
    return float(
        stats.chisquare(seen, [whole * p / sum(probabilities.values()) for p in probabilities.values()]).pvalue
    )


# -- common behaviour ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_holds_the_newest(kind: str) -> None:
    """Compare with a list, for blocks of all sizes, including some larger than the replay."""
    rng, all_of_them = np.random.default_rng(0), list[int]()
    replay = KINDS[kind](37)
    for count in (1, 5, 36, 1, 37, 2, 100, 38, 12, 3):
        new = list(range(len(all_of_them), len(all_of_them) + count))
        replay.add(numbered(new))
        all_of_them += new
        assert len(replay) == min(37, len(all_of_them))
        seen = set(draw_counts(replay, 4, 400, seed=int(rng.integers(100))))
        assert seen <= set(all_of_them[-37:])
        if kind == "uniform":
            assert seen == set(all_of_them[-37:])


@pytest.mark.parametrize("kind", KINDS)
def test_restored_replay_continues_identically(kind: str) -> None:
    """The restored replay draws, adds and drops the same transitions as the saved one."""
    replay, again = KINDS[kind](50), KINDS[kind](50)
    rng = np.random.default_rng(1)
    for start in range(0, 80, 8):  # the ring has wrapped
        replay.add(numbered(range(start, start + 8)))
        sample = replay.sample(16, rng)
        replay.update(sample.indices, rng.random(16))
    again.restore({name: saved.copy() for name, saved in replay.state().items()})
    for one in (replay, again):
        one.add(numbered(range(80, 90)))
    assert len(again) == len(replay) == 50
    # Positions differ, but the probabilities by number are equal.
    assert _probabilities(again) == pytest.approx(_probabilities(replay))
    assert set(again.state()) == set(replay.state())


def _probabilities(replay: Any) -> dict[int, float]:
    """Return priorities by number, from the saved state."""
    state = {name.removeprefix("0."): saved for name, saved in replay.state().items()}
    of = state.get("priorities", np.ones(len(state["reward"])))
    return dict(zip(state["reward"].astype(int).tolist(), of.tolist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_soft_capacity(kind: str) -> None:
    """A replay with slack: only `trim` drops transitions: the oldest, which are never drawn again."""
    replay = KINDS[kind](20, slack=15)
    replay.add(numbered(range(33)))
    assert len(replay) == 33
    assert replay.trim() == 13
    assert len(replay) == 20
    assert replay.trim() == 0
    assert min(draw_counts(replay, 20, 64)) >= 13
    replay.add(numbered(range(33, 60)))  # more than fits: the slack is limited
    assert len(replay) == 35
    replay.trim()
    assert min(draw_counts(replay, 20, 64)) >= 40


@pytest.mark.parametrize("kind", KINDS)
def test_empty_replay_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match="empty"):
        KINDS[kind](10).sample(4, np.random.default_rng(0))


@pytest.mark.parametrize("kind", ["proportional", "rank-based"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e308, -1.0])
def test_invalid_priorities(kind: str, wrong: float) -> None:
    replay = KINDS[kind](10)
    replay.add(numbered(range(4)))
    with pytest.raises(InputError, match="give priorities from 0 to"):
        replay.update(np.arange(4), np.array([1.0, wrong, 1.0, 1.0]))


def test_minibatch_of_all_transitions() -> None:
    sample = Minibatch.of(numbered(range(3)))
    assert sample.weights.tolist() == [1, 1, 1]
    assert sample.transitions.reward.tolist() == [0, 1, 2]


# -- distributions -----------------------------------------------------------------------------------------


def test_uniform_draws_equally() -> None:
    replay = UniformReplay(40)
    replay.add(numbered(range(60)))
    assert p_value(draw_counts(replay, 300, 64), dict.fromkeys(range(20, 60), 1.0)) > MIN_P


@pytest.mark.parametrize("batch", [7, 64])
def test_proportional_draws_by_priority(batch: int) -> None:
    """P(i) = p_i^α / Σ p_k^α, after changed priorities and a wrapped ring."""
    rng = np.random.default_rng(2)
    replay = ProportionalReplay(150, alpha=0.6)
    priorities = dict(enumerate(rng.gamma(0.5, size=230)))
    replay.add(numbered(range(230)), np.array(list(priorities.values())))
    for _ in range(20):
        sample = replay.sample(10, rng)
        new = dict(zip(sample.indices.tolist(), rng.gamma(0.5, size=10).tolist(), strict=True))
        replay.update(np.array(list(new)), np.array(list(new.values())))
        numbers = dict(zip(sample.indices.tolist(), sample.transitions.reward.astype(int).tolist(), strict=True))
        priorities |= {numbers[place]: value for place, value in new.items()}
    powers = {number: p**0.6 for number, p in priorities.items() if number >= 80}
    # Numbers drawn less than five times are too rare for the test.
    counts = draw_counts(replay, 20_000 // batch, batch)
    common = {n: p for n, p in powers.items() if p / sum(powers.values()) * 20_000 > 5}
    assert p_value(Counter({n: counts[n] for n in common}), common) > MIN_P


@pytest.mark.parametrize("kind", [ProportionalReplay, RankBasedReplay])
def test_alpha_0_is_uniform(kind: Any) -> None:
    """P = 1/N, and all weights are 1 for any β."""
    replay = kind(30, alpha=0.0, beta_start=0.7)
    replay.add(numbered(range(30)), np.arange(30) ** 2.0)
    sample = replay.sample(256, np.random.default_rng(0))
    assert sample.weights == pytest.approx(np.ones(256))
    assert p_value(draw_counts(replay, 600, 15), dict.fromkeys(range(30), 1.0)) > MIN_P


def test_four_priorities() -> None:
    """p = (4, 2, 1, 1), α = β = 1: P = (.5, .25, .125, .125), and weights (.25, .5, 1, 1).

    A minibatch of 8 takes one from each eighth of the sum, so each occurs exactly with probability P.
    """
    replay = ProportionalReplay(4, alpha=1.0, beta_start=1.0)
    replay.add(numbered(range(4)), np.array([4.0, 2.0, 1.0, 1.0]))
    sample = replay.sample(8, np.random.default_rng(0))
    assert Counter(sample.transitions.reward.tolist()) == {0: 4, 1: 2, 2: 1, 3: 1}
    of = dict(zip(sample.transitions.reward.tolist(), sample.weights.tolist(), strict=True))
    assert of == pytest.approx({0: 0.25, 1: 0.5, 2: 1.0, 3: 1.0})
    assert p_value(draw_counts(replay, 1000, 8), {0: 0.5, 1: 0.25, 2: 0.125, 3: 0.125}) > MIN_P


def test_rank_based_draws_by_rank() -> None:
    """Use errors 100, 3, 2, 1: the first is drawn 1/1^α : 1/4^α as often as the last, whatever its size."""
    replay = RankBasedReplay(4, alpha=0.7, resort_every=1)
    replay.add(numbered(range(4)), np.array([1.0, 100.0, 2.0, 3.0]))
    ranks = {1: 1, 3: 2, 2: 3, 0: 4}
    assert p_value(draw_counts(replay, 1000, 8), {n: r**-0.7 for n, r in ranks.items()}) > MIN_P
    replay.update(np.array([1]), np.array([0.5]))
    ranks = {3: 1, 2: 2, 0: 3, 1: 4}
    assert p_value(draw_counts(replay, 1000, 8), {n: r**-0.7 for n, r in ranks.items()}) > MIN_P


def test_rank_based_sorts_periodically() -> None:
    replay = RankBasedReplay(100, alpha=1.0, resort_every=50)
    replay.add(numbered(range(60)), np.linspace(60, 1, 60))
    before = draw_counts(replay, 200, 8)
    replay.add(numbered(range(60, 100)), np.full(40, 1e3))  # 40 changes: not sorted yet
    assert max(draw_counts(replay, 50, 8)) < 60
    replay.update(np.arange(10), np.full(10, 0.1))  # 50
    after = draw_counts(replay, 200, 8)
    assert max(after) >= 60
    assert before[0] > 4 * after[0]


def test_weights_remove_the_bias() -> None:
    """Use β = 1: the weighted mean over draws is the mean over all."""
    rng = np.random.default_rng(3)
    replay = ProportionalReplay(200, alpha=0.6, beta_start=1.0)
    replay.add(numbered(range(200)), rng.gamma(2.0, size=200))
    total = count = 0.0
    for _ in range(600):
        sample = replay.sample(128, rng)
        scale = 1.0 / sample.weights.sum()
        total += float((sample.weights * sample.transitions.reward).sum()) * scale
        count += 1
    assert total / count == pytest.approx(99.5, rel=0.01)


def test_beta_rises_to_1() -> None:
    replay = ProportionalReplay(4, alpha=1.0, beta_start=0.4, beta_draws=10)
    replay.add(numbered(range(4)), np.array([4.0, 2.0, 1.0, 1.0]))
    betas = []
    for _ in range(12):
        betas.append(replay.beta)
        sample = replay.sample(8, np.random.default_rng(0))
    assert betas[::5] == pytest.approx([0.4, 0.7, 1.0])
    assert min(sample.weights) == pytest.approx(0.25)
    assert ProportionalReplay(4, beta_start=0.4).beta == 0.4


def test_new_transitions_have_the_highest_priority() -> None:
    """A transition without priority gets the largest so far, initially 1."""
    replay = ProportionalReplay(10, alpha=1.0)
    replay.add(numbered([0]))
    replay.update(np.array([0]), np.array([5.0]))
    replay.add(numbered([1]))
    replay.update(np.array([0]), np.array([0.0]))
    replay.add(numbered([2]), np.array([15.0]))
    assert p_value(draw_counts(replay, 500, 8), {1: 5.0, 2: 15.0}) > MIN_P
    replay.add(numbered([3]))
    assert p_value(draw_counts(replay, 500, 8), {1: 5.0, 2: 15.0, 3: 15.0}) > MIN_P


@pytest.mark.parametrize("least", [0.0, 1e-320])
def test_priorities_that_are_all_zero_draw_uniformly(least: float) -> None:
    """Nothing ranks transitions of priority 0, so P = 1/N for those still stored, and all weights are 1."""
    replay = ProportionalReplay(30, alpha=1.0, beta_start=1.0, slack=10)
    replay.add(numbered(range(45)))
    replay.trim()
    replay.update(np.arange(40), np.full(40, least))
    sample = replay.sample(256, np.random.default_rng(0))
    assert sample.weights.tolist() == [1.0] * 256
    assert p_value(draw_counts(replay, 600, 15), dict.fromkeys(range(15, 45), 1.0)) > MIN_P
    assert replay.share_of_highest(0.1) == pytest.approx(0.1)
    replay.update(sample.indices[:1], np.array([2.0]))  # the only one with a weight
    assert len(draw_counts(replay, 20, 15)) == 1


def test_shards_without_priorities_are_refused() -> None:
    with pytest.raises(InputError, match="priorities of 2 shards sum to 0"):
        split_shares([0.0, 0.0], np.array([0.5]))


# -- the sum tree ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000, 20_000])
def test_sum_tree_matches_a_cumulative_sum(size: int) -> None:
    rng = np.random.default_rng(size)
    tree = SumTree(size)
    weights = np.zeros(size)
    for _ in range(10):
        places = rng.integers(0, size, size=20)
        new = np.where(rng.random(20) < 0.5, 0.0, rng.random(20))
        new[0] += 0.01
        tree.set(places, new)
        for place, value in zip(places, new, strict=True):
            weights[place] = value
        start = int(rng.integers(0, size))
        tree.set(slice(start, min(size, start + 100)), 0.25)
        weights[start : start + 100] = 0.25
        shares = np.concatenate([[0.0, 1 - 2**-53], rng.random(200)])
        found, total = tree.find(shares)
        assert total == pytest.approx(weights.sum())
        running = np.cumsum(weights)
        expected = np.searchsorted(running, shares * running[-1], "right")
        # At a boundary, rounding may select a neighbour, but never one without weight.
        assert (weights[found] > 0).all()
        assert np.mean(found == np.minimum(expected, np.flatnonzero(weights)[-1])) > 0.98
        assert np.abs(running[found] - shares * running[-1]).max() <= weights.max() + 1e-9


def test_sum_tree_does_not_drift() -> None:
    """The sums after many changes equal those of the leaves, up to the rounding of one sum."""
    rng = np.random.default_rng(0)
    tree = SumTree(500)
    for _ in range(3000):
        tree.set(rng.integers(0, 500, 8), 10.0 ** rng.uniform(-12, 6, 8))
    tree.set(np.arange(500), 1e-9)
    assert tree.total == pytest.approx(500e-9, rel=1e-12)


def test_weights_of_equal_probabilities() -> None:
    assert importance_weights(np.full(5, 0.1), 0.4).tolist() == [1.0] * 5


# -- frames ------------------------------------------------------------------------------------------------


def _episode(length: int, seed: int, n: int = 1) -> Transitions:
    """Return stacks of four frames from an episode of random images, with n-step transitions."""
    frames = np.random.default_rng(seed).integers(0, 256, (length + n + 3, 6, 5), dtype=np.uint8)
    stacks = np.stack([frames[i : i + 4] for i in range(length + n)])
    return Transitions(
        stacks[:length], np.arange(length), np.arange(length, dtype=np.float32) + 1000 * seed, stacks[n:],
        np.ones(length, np.float32),
    )  # fmt: skip


def test_frames_are_stored_once() -> None:
    """An episode of 100 steps has 103 + 1 different frames; each transition contains 8."""
    plain, once = UniformReplay(100), UniformReplay(100, stores_frames_once=True)
    for replay in (plain, once):
        replay.add(_episode(100, seed=1))
    assert isinstance(once._storage, Frames)
    assert len(once._storage._hash_of) == 104
    for seed in range(3):
        first, second = (replay.sample(32, np.random.default_rng(seed)) for replay in (plain, once))
        for name in Transitions.__slots__:
            assert np.array_equal(getattr(first.transitions, name), getattr(second.transitions, name))


def test_frames_are_dropped_with_their_transitions() -> None:
    """Add many episodes of 3-step transitions: only frames of the last 100 transitions remain."""
    replay = UniformReplay(100, stores_frames_once=True)
    reference: dict[float, tuple[np.ndarray, np.ndarray]] = {}
    for seed in range(12):
        for part in np.array_split(np.arange(45), 7):
            transitions = _episode(45, seed, n=3)[part]
            replay.add(transitions)
            ends = zip(transitions.observation, transitions.next_observation, strict=True)
            reference |= dict(zip(transitions.reward.tolist(), ends, strict=True))
    sample = replay.sample(400, np.random.default_rng(0)).transitions
    for reward, first, second in zip(sample.reward.tolist(), sample.observation, sample.next_observation, strict=True):
        assert np.array_equal(first, reference[reward][0])
        assert np.array_equal(second, reference[reward][1])
    assert isinstance(replay._storage, Frames)
    assert len(replay._storage._hash_of) <= 100 + 4 * 6


def test_too_many_frames() -> None:
    """Episodes of one step share no frames."""
    replay = UniformReplay(100, stores_frames_once=True)
    apart = np.random.default_rng(0).integers(0, 256, (2, 50, 4, 6, 5), dtype=np.uint8)
    rest = np.zeros(50, np.float32)
    with pytest.raises(InputError, match="frames are in use"):
        replay.add(Transitions(apart[0], rest.astype(np.int64), rest, apart[1], rest))


def test_frames_saved_and_restored() -> None:
    replay, again = (UniformReplay(60, stores_frames_once=True) for _ in range(2))
    replay.add(_episode(80, seed=5))
    again.restore(replay.state())
    assert isinstance(again._storage, Frames)
    assert len(again._storage._hash_of) == 64
    assert replay.state()["frames"].shape == (64, 6, 5)  # each once, on the disk too
    first, second = (one.sample(200, np.random.default_rng(0)).transitions for one in (replay, again))
    of = dict(zip(first.reward.tolist(), first.observation, strict=True))
    assert all(
        np.array_equal(of[r], o) for r, o in zip(second.reward.tolist(), second.observation, strict=True) if r in of
    )


# -- shards ------------------------------------------------------------------------------------------------


def test_shards_draw_like_one_replay() -> None:
    """Use three shards with unequal sums and an empty one."""
    rng = np.random.default_rng(4)
    shards = [ProportionalReplay(60, alpha=1.0) for _ in range(4)]
    priorities = rng.gamma(2.0, size=90)
    for shard, numbers in zip(shards, np.split(np.arange(90), [15, 50]), strict=False):
        shard.add(numbered(numbers), priorities[numbers])
    counts: Counter[int] = Counter()
    for _ in range(500):
        for number, shares, of_all in split_shares([shard.total for shard in shards], stratified(64, rng)):
            places, within = shards[number].draw(shares)
            numbers = shards[number].read(places).reward.astype(int)
            counts.update(numbers.tolist())
            assert of_all * within == pytest.approx(priorities[numbers] / priorities.sum(), rel=1e-5)
    assert p_value(counts, {n: priorities[n] for n in range(90)}) > MIN_P


# -- several steps -----------------------------------------------------------------------------------------


def _brute_force(rewards: list[float], terminal: bool, n: int, gamma: float) -> list[tuple[int, float, int, float]]:
    """Return for each step of an episode its number, return, next number, and discount."""
    out = []
    for t in range(len(rewards)):
        k = min(n, len(rewards) - t)
        total = sum(gamma**i * rewards[t + i] for i in range(k))
        is_over = terminal and t + k == len(rewards)
        out.append((t, total, t + k, 0.0 if is_over else gamma**k))
    return out


@pytest.mark.parametrize("n", [1, 3, 5])
def test_n_steps_match_brute_force(n: int) -> None:
    """Use terminated and truncated episodes of all lengths from 1, in parallel environments."""
    gamma, rng = 0.9, np.random.default_rng(n)
    num_envs, assembler = 3, NStep(n, gamma, 3)
    expected: list[list[tuple[int, float, int, float]]] = [[] for _ in range(num_envs)]
    plans: list[list[tuple[float, int, bool]]] = []  # reward, number of the observation, how it ends
    for env in range(num_envs):
        number, steps = 1000 * env, []
        while len(steps) < 60:
            length, terminal = int(rng.integers(1, 9)), bool(rng.random() < 0.5)
            rewards = rng.normal(size=length).tolist()
            expected[env] += [
                (number + t, r, number + after, d) for t, r, after, d in _brute_force(rewards, terminal, n, gamma)
            ]
            steps += [
                (r, number + t, t == length - 1 and terminal, t == length - 1 and not terminal)
                for t, r in enumerate(rewards)
            ]
            number += length + 1
        plans.append(steps)
    got: list[list[tuple[int, float, int, float]]] = [[] for _ in range(num_envs)]
    for now in zip(*(plan[:60] for plan in plans), strict=True):
        reward, number, terminated, truncated = (np.array(values) for values in zip(*now, strict=True))
        observation = number[:, None].astype(np.float32)
        out = assembler.step(observation, number, reward, observation + 1, terminated, truncated)
        for row in range(0 if out is None else len(out)):
            one = int(out.observation[row, 0])
            assert out.action[row] == one
            got[one // 1000].append(
                (one, float(out.reward[row]), int(out.next_observation[row, 0]), float(out.discount[row]))
            )
    for env in range(num_envs):
        assert len(got[env]) >= 60 - n
        for mine, theirs in zip(got[env], expected[env], strict=False):
            assert mine == pytest.approx(theirs, abs=1e-5)


def test_n_step_copies_observations() -> None:
    """An environment may write its next observation into the same array."""
    assembler, seen = NStep(1, 0.9), np.zeros((1, 2), np.float32)
    first = assembler.step(seen, np.array([1]), np.array([1.0]), seen, np.array([False]), np.array([False]))
    seen += 7
    assert first is not None
    assert first.observation.tolist() == [[0, 0]]
    assert first.next_observation.tolist() == [[0, 0]]


# -- exploration -------------------------------------------------------------------------------------------


def test_epsilon_ladder_of_8() -> None:
    expected = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]
    assert epsilon_ladder(8) == pytest.approx(expected)
    assert epsilon_ladder(1) == [0.4]


def test_all_kinds_are_replays() -> None:
    replays: list[Replay] = [
        UniformReplay(1),
        ProportionalReplay(1),
        RankBasedReplay(1),
    ]
    assert [len(replay) for replay in replays] == [0, 0, 0]
