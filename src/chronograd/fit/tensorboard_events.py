"""Scalars of TensorBoard's event files, read as TensorBoard does where there is no TensorFlow.

Importing TensorFlow, which its usual reader does where there is one, takes seconds, and torchvision cannot be loaded after it.
"""

from __future__ import annotations

from pathlib import Path

from chronograd import files
from chronograd.errors import FileFormatError, MissingExtraError

try:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub import errors
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
except ImportError:
    raise MissingExtraError("tensorboard", "tensorboard", "reading TensorBoard events") from None

LARGEST_BYTES = 2_000_000_000


def scalars(file: Path) -> list[tuple[str, int, float]]:
    """Tag, step and value of each scalar of one file, in its order; a torn record at its end is left out.

    Raises FileFormatError for a file without a single whole record.
    """
    found = []
    try:
        with files.open_plain(file) as stream:  # a pipe would wait for ever
            stream.seek(0, 2)
            is_large = stream.tell() > LARGEST_BYTES
        if is_large:
            raise FileFormatError(f"{file} has more than {LARGEST_BYTES:,} bytes", "write scalars only")
        reader = PyRecordReader_New(str(file))
        while True:
            reader.GetNext()
            event = Event.FromString(reader.record())
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.append((value.tag, int(event.step), float(value.simple_value)))
                elif value.HasField("tensor") and len(value.tensor.float_val) == 1:
                    found.append((value.tag, int(event.step), float(value.tensor.float_val[0])))
    except errors.OutOfRangeError:
        return found
    except FileFormatError:
        raise
    except Exception as error:  # of the protocol's own many kinds
        if found:
            return found  # the last record of a file that is being written
        raise FileFormatError(f"{file} holds no events of TensorBoard: {' '.join(str(error).split())[:200]}") from None
