"""The bytes of protocol buffers, against the examples of their documentation."""

import pytest

from mt.data.tokenizer_training import bytes_field, fields, number_field, varint


def test_the_examples_of_the_documentation() -> None:
    assert varint(150) == bytes.fromhex("9601")
    assert number_field(1, 150) == bytes.fromhex("089601")
    assert bytes_field(2, b"testing") == bytes.fromhex("120774657374696e67")


def test_fields_are_read_as_they_were_written() -> None:
    long = b"x" * 300
    fixed = bytes.fromhex("1d0000803f") + bytes.fromhex("210000000000000040")
    written = number_field(1, 300) + bytes_field(40, long) + fixed + bytes_field(2, b"")
    assert [*fields(written)] == [
        (1, varint(300)),
        (40, long),
        (3, bytes.fromhex("0000803f")),
        (4, bytes.fromhex("0000000000000040")),
        (2, b""),
    ]


@pytest.mark.parametrize("damaged", ["12ff", "1203616", "0b", "08", "1d00"])
def test_damaged_bytes_are_refused(damaged: str) -> None:
    with pytest.raises(ValueError, match="no message of protocol buffers"):
        list(fields(bytes.fromhex(damaged.ljust(len(damaged) + len(damaged) % 2, "0"))))
