"""Storage of transitions: arrays with one place for each, and overlapping image stacks stored frame by frame."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chronograd.errors import InputError
from chronograd.reinforce.replay.transitions import FIELDS, Array, Indices, Transitions
from chronograd.words import how_many

# Transitions whose stacks are restored together; a stack of 84 × 84 × 4 takes 56 kB.
_AT_ONCE = 256
PICTURES = ("observation", "next_observation")


class Columns:
    """One array per field, allocated with the shape and type of the first transitions."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._columns: tuple[Array, ...] = ()

    def write(self, places: slice, transitions: Transitions) -> None:
        """Overwrite consecutive places with transitions."""
        columns = self._columns or self._allocate(transitions)
        observation, action, reward, next_observation, discount = columns
        observation[places] = transitions.observation
        action[places] = transitions.action
        reward[places] = transitions.reward
        next_observation[places] = transitions.next_observation
        discount[places] = transitions.discount

    def read(self, places: Indices) -> Transitions:
        return Transitions(*[column.take(places, 0) for column in self._columns])

    def saved(self, places: Indices) -> dict[str, Array]:
        """Return the transitions at these places as arrays to save."""
        transitions = self.read(places)
        return {name: getattr(transitions, name) for name in FIELDS}

    def restored(self, state: dict[str, Array]) -> Iterator[Transitions]:
        """Yield the transitions from `saved` in parts, to be written again."""
        yield Transitions(*(state[name] for name in FIELDS))

    def _allocate(self, transitions: Transitions) -> tuple[Array, ...]:
        first = [np.asarray(getattr(transitions, name)) for name in FIELDS]
        self._columns = tuple(np.zeros((self._capacity, *one.shape[1:]), one.dtype) for one in first)
        return self._columns


class Frames:
    """Columns for observations that are stacks of frames, shape (n, stack, ...), with each distinct frame stored once.

    Consecutive stacks share all but one of their frames; the stacks before and after a transition share most. Frames are
    identified by their content, so episodes and writers do not matter. A frame is dropped when no transition uses it.
    """

    def __init__(self, capacity: int, frames_per_transition: float = 1.25) -> None:
        """Reserve room for `frames_per_transition` stored frames per transition. One actor needs little more than 1."""
        self._capacity = capacity
        self._rest = Columns(capacity)
        self._num_frames = int(capacity * frames_per_transition) + 64
        self._frames: Array | None = None
        self._uses = np.zeros(self._num_frames, np.int64)
        self._free = list(range(self._num_frames))
        self._place_of: dict[int, int] = {}  # by hash of the content
        self._hash_of: dict[int, int] = {}

    def write(self, places: slice, transitions: Transitions) -> None:
        if self._frames is None:
            shape = transitions.observation.shape
            self._frames = np.zeros((self._num_frames, *shape[2:]), transitions.observation.dtype)
        else:
            old = self._rest.read(np.arange(places.start, places.stop))
            self._release(old.observation)
            self._release(old.next_observation)
        stacks = [self._place(getattr(transitions, name)) for name in PICTURES]
        numbers = Transitions(stacks[0], transitions.action, transitions.reward, stacks[1], transitions.discount)
        self._rest.write(places, numbers)

    def read(self, places: Indices) -> Transitions:
        assert self._frames is not None
        rest = self._rest.read(places)
        # A place that was never written holds 0; a written one holds its frame's number plus 1.
        first, second = (self._frames.take(getattr(rest, name) - 1, 0) for name in PICTURES)
        return Transitions(first, rest.action, rest.reward, second, rest.discount)

    def saved(self, places: Indices) -> dict[str, Array]:
        """Return each frame once, and the frame numbers of each transition, counted from 0. See Columns.saved."""
        assert self._frames is not None
        state = self._rest.saved(places)
        numbers = np.stack([state[name] for name in PICTURES])
        used, of_used = np.unique(numbers, return_inverse=True)
        both = of_used.reshape(numbers.shape)
        return state | {"frames": self._frames[used - 1]} | dict(zip(PICTURES, both.copy(), strict=True))

    def restored(self, state: dict[str, Array]) -> Iterator[Transitions]:
        frames = state["frames"]
        for start in range(0, len(state["reward"]), _AT_ONCE):
            numbers = Transitions(*(state[name][start : start + _AT_ONCE] for name in FIELDS))
            first, second = frames[numbers.observation], frames[numbers.next_observation]
            yield Transitions(first, numbers.action, numbers.reward, second, numbers.discount)

    def _place(self, stacks: Array) -> Indices:
        """Return the number of each frame, counted from 1, shape (n, stack). Store new frames."""
        assert self._frames is not None
        numbers = np.empty(stacks.shape[:2], np.int64)
        for at in np.ndindex(*numbers.shape):
            frame = stacks[at]
            content = hash(frame.tobytes())
            place = self._place_of.get(content)
            if place is None or not np.array_equal(self._frames[place], frame):
                place = self._store(content, frame)
            self._uses[place] += 1
            numbers[at] = place + 1
        return numbers

    def _store(self, content: int, frame: Array) -> int:
        assert self._frames is not None
        if not self._free:
            raise InputError(
                f"{self._num_frames:,} frames are in use by {how_many(self._capacity, 'transitions')}",
                "give more frames_per_transition: actors of short episodes share fewer frames",
            )
        place = self._free.pop()
        self._frames[place] = frame
        self._place_of[content] = place
        self._hash_of[place] = content
        return place

    def _release(self, numbers: Indices) -> None:
        places = numbers[numbers > 0] - 1
        np.subtract.at(self._uses, places, 1)
        for place in np.unique(places[self._uses[places] == 0]).tolist():
            content = self._hash_of.pop(place)
            if self._place_of.get(content) == place:
                del self._place_of[content]
            self._free.append(place)


Storage = Columns | Frames
