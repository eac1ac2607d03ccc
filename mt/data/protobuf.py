"""Protocol buffers' bytes, as far as SentencePiece's model files need them.

The classes that protobuf would generate fit few versions of protobuf each; these few lines fit them
all (https://protobuf.dev/programming-guides/encoding).
"""

from collections.abc import Iterator

_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
"""The wire types of a fixed width."""
_NO_MESSAGE = "is no message of protocol buffers"


def bytes_field(field: int, content: bytes) -> bytes:
    """Return a field that holds a message, a text or bytes."""
    return varint(field << 3 | _LENGTH_DELIMITED) + varint(len(content)) + content


def number_field(field: int, value: int) -> bytes:
    """Return a field that holds a number from 0 on."""
    return varint(field << 3 | _VARINT) + varint(value)


def varint(value: int) -> bytes:
    """Return a number from 0 on, seven bits a byte, the lowest first."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number of each field of a message, and its content; of a number, its varint.

    Raises ValueError where the bytes are no message.
    """
    place = 0
    while place < len(content):
        tag, begin = _read_varint(content, place)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, place = _read_varint(content, begin)
        elif wire_type == _LENGTH_DELIMITED:
            length, begin = _read_varint(content, begin)
            place = begin + length
        elif wire_type in _FIXED_BYTES:
            place = begin + _FIXED_BYTES[wire_type]
        else:
            raise ValueError(_NO_MESSAGE)
        if place > len(content):
            raise ValueError(_NO_MESSAGE)
        yield tag >> 3, content[begin:place]


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    """Return the number that begins at `place`, and the place after it."""
    value = shift = 0
    while place < len(content):
        byte = content[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise ValueError(_NO_MESSAGE)
