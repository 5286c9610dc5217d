"""Scalars of TensorBoard's event files, read with TensorBoard's own code for use without TensorFlow.

TensorBoard's usual reader imports TensorFlow if it is installed. That takes seconds, and torchvision cannot be loaded after it.
A file is a sequence of records: the length of the data in 8 bytes, its checksum in 4, the data, the data's checksum in 4.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import IO

from chronograd import door
from chronograd.errors import FileFormatError, MissingExtraError
from chronograd.words import how_many

try:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
except ImportError:
    raise MissingExtraError("tensorboard", "tensorboard", "reading TensorBoard events") from None

LARGEST_BYTES = 2_000_000_000
LENGTH, CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
HEADER_BYTES = LENGTH.size + CHECKSUM.size
MAX_NAMED = 5
Point = tuple[str, int, float, float]


def scalars(file: Path) -> tuple[list[Point], list[str]]:
    """Return tag, step, value and time (seconds since 1970) of each scalar of a file, in order, and notes on unreadable parts.

    A record with damaged data is skipped, and so is an incomplete one at the end. Nothing after a damaged length can be read.
    Raises FileFormatError for a file whose first record cannot be read.
    """
    try:
        with door.opened(file, "an event file of TensorBoard", most_bytes=LARGEST_BYTES) as stream:
            return _records(stream, os.fstat(stream.fileno()).st_size, file)
    except OSError as error:
        raise FileFormatError(f"cannot read {file}: {error.strerror}") from None


def _records(stream: IO[bytes], size: int, file: Path) -> tuple[list[Point], list[str]]:
    points: list[Point] = []
    notes: list[str] = []
    damaged: list[int] = []
    number = 0
    while (at := stream.tell()) < size:
        number += 1
        header = stream.read(HEADER_BYTES)
        is_torn = len(header) < HEADER_BYTES
        if not is_torn and masked_crc32c(header[: LENGTH.size]) != CHECKSUM.unpack(header[LENGTH.size :])[0]:
            what = f"record {number} is damaged, so the rest cannot be read: {size - at:,} of {how_many(size, 'bytes')}"
        elif is_torn or (length := LENGTH.unpack_from(header)[0]) > size - at - HEADER_BYTES - CHECKSUM.size:
            what = f"record {number}, the last, is left out: it is being written, or was cut off"
        else:
            data, checksum = stream.read(length), stream.read(CHECKSUM.size)
            if masked_crc32c(data) != CHECKSUM.unpack(checksum)[0] or (own := _scalars_of(data)) is None:
                damaged.append(number)
            else:
                points += own
            continue
        if number == 1:
            raise FileFormatError(f"{file} has no TensorBoard events: {what}", "copy the file again")
        notes.append(what)
        break
    if damaged:
        named = ", ".join(map(str, damaged[:MAX_NAMED])) + ", …" * (len(damaged) > MAX_NAMED)
        count = f"{len(damaged)} of {how_many(number, 'records')} {'is' if len(damaged) == 1 else 'are'} damaged and left out"
        notes.insert(0, f"{count}: {named}")
    return points, [f"{file.name}: {note}" for note in notes]


def _scalars_of(data: bytes) -> list[Point] | None:
    """Return the scalars of one event; None if the data are not an event."""
    try:
        event = Event.FromString(data)
    except Exception:  # protocol buffers raise many kinds of errors
        return None
    points = []
    for value in event.summary.value:
        if value.HasField("simple_value"):
            points.append((value.tag, int(event.step), float(value.simple_value), float(event.wall_time)))
        elif value.HasField("tensor") and len(value.tensor.float_val) == 1:
            points.append((value.tag, int(event.step), float(value.tensor.float_val[0]), float(event.wall_time)))
    return points
