"""TensorBoard's event files: bytes into records of one scalar each. No I/O.

A file is a list of TFRecords: a length (uint64), a checksum of it, the bytes of an `Event`, and their
checksum. The protobuf messages are read here, because the package `tensorboard` brings a server with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from rlguard.core.frameworks import bare
from rlguard.follow.decoders import MAX_LINE, DamagedError, Decoder, Record, cut_name
from rlguard.follow.frameworks import STEP_NAMES

#: A record can have no more bytes: its message could not be made.
_MAX_MESSAGE = 1 << 31


class Events:
    """The scalars of an event file. A record that is too long, as of a picture, is passed over.

    The checksum of the length tells a record that is still being written from damage.
    """

    def __init__(self) -> None:
        self.bad = 0
        self.why = "a record that is damaged"
        #: Records that were too long; they are in `bad`, too.
        self.too_long = 0
        self._part = b""
        self._passing = 0  # bytes that are passed over

    def feed(self, data: bytes) -> list[Record]:
        """See `Decoder`."""
        data, at = self._part + data, self._passing
        found: list[Record] = []
        while len(data) - at >= 12:
            length, check = struct.unpack_from("<QI", data, at)
            if check != _masked_crc(data[at : at + 8]) or length > _MAX_MESSAGE:
                raise DamagedError("not a TensorBoard event file, or one that is damaged")
            if length > MAX_LINE:
                self.too_long += 1
                self.bad += 1
            elif len(data) - at < 16 + length:
                break
            else:
                found += self._scalars(data[at + 12 : at + 12 + length])
            at += 16 + length
        self._part, self._passing = data[at:], max(0, at - len(data))
        return found

    def rest(self) -> list[Record]:
        """See `Decoder`: a record that is not whole has no values."""
        return []

    def anew(self) -> Decoder:
        """See `Decoder`."""
        return Events()

    @property
    def in_mid_record(self) -> bool:
        """Whether the end of a record is missing."""
        return bool(self._part or self._passing)

    def _scalars(self, message: bytes) -> Iterator[Record]:
        """Records with a step and one scalar, in the order of the file.

        A tag that counts steps is left out: it stands beside one value of many, and the event has the step.
        """
        try:
            step, summaries = 0, []
            for key, value in _fields(message):
                if key == 2 and isinstance(value, int):
                    step = value
                elif key == 5 and isinstance(value, bytes):
                    summaries.append(value)
            for summary in summaries:
                for key, value in _fields(summary):
                    if key == 1 and isinstance(value, bytes):
                        tag, scalar = _tag_and_scalar(value)
                        if scalar is not None and tag and bare(tag) not in STEP_NAMES:
                            yield {"step": step, tag: scalar}
        except (ValueError, IndexError, struct.error):
            self.bad += 1


def _tag_and_scalar(message: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for key, value in _fields(message):
        if key == 1 and isinstance(value, bytes):
            tag = cut_name(value.decode("utf-8"))
        elif key == 2 and isinstance(value, bytes):
            (scalar,) = struct.unpack("<f", value)
        elif key == 8 and isinstance(value, bytes):
            scalar = _of_tensor(value)
    return tag, scalar


#: How one number is packed in a tensor: `DataType` to the field of such numbers, and their form. Writers make
#: every scalar one of these.
_TENSORS = {1: (5, "<f"), 2: (6, "<d")}
_CONTENT = 4


def _of_tensor(message: bytes) -> float | None:
    """The number of a tensor with one element; None for anything else."""
    fields = list(_fields(message))
    dtype = next((value for key, value in fields if key == 1 and isinstance(value, int)), 0)
    if dtype not in _TENSORS:
        return None
    where, form = _TENSORS[dtype]
    packed = (value for key, value in fields if key in (_CONTENT, where) and isinstance(value, bytes))
    fit = (value for value in packed if len(value) == struct.calcsize(form))
    return next((float(struct.unpack(form, value)[0]) for value in fit), None)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers of varints, bytes of everything else."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        match tag & 7:
            case 0:
                value, at = _varint(message, at)
                yield tag >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(message, at)
            case 5:
                size = 4
            case _:
                raise ValueError("no protobuf")
        if at + size > len(message):
            raise ValueError("cut short")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
        if shift > 63:
            raise ValueError("no varint")


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_CRC_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    """The checksum of a TFRecord: CRC-32C, rotated and offset."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
