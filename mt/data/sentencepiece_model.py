"""SentencePiece models as protocol buffers messages: reading, writing and replacing tokens."""

import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence

import sentencepiece

from mt.special_ids import BOS, EOS, PAD, UNK

# Fields of ModelProto, TrainerSpec and SentencePiece in sentencepiece_model.proto.
_TOKENS, _TRAINER, _NORMALIZER, _SELF_TEST = 1, 2, 3, 4
_CHARACTERS_MAP = 2
_NO_SPACE_IN_FRONT = b"\x18\x00"
_ERRORS_ONLY = 2
_MODEL_TYPE, _BPE = 3, b"\x02"
_VOCABULARY_SIZE = 4
_SPECIAL_FIELDS = {UNK: (40, 45), BOS: (41, 46), EOS: (42, 47), PAD: (43, 48)}  # id and text
_TEXT, _SCORE_FIELD, _TYPE = 1, 2, 3
_SCORE = b"\x15"  # field and wire type
_UNKNOWN = 2
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Types of tokens: cut out of a text by its merges; never in a text and decoded to nothing; always
cut out of a text; never cut out."""
LAST = -1e6
"""Score below all others, so that BPE merges unused tokens last."""
SPECIAL = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}
_ABSENT = 2**64 - 1  # -1


def is_bpe(model: bytes) -> bool:
    """Return True for a BPE model. Raises ValueError if `model` is not a SentencePiece model."""
    trainer = dict(fields(dict(fields(model)).get(_TRAINER, b"")))
    return trainer.get(_MODEL_TYPE) == _BPE


def read_tokens(model: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the text and the message of each token in the order of ids, special ones included.

    Raises ValueError if `model` is not a SentencePiece model.
    """
    for field, content in fields(model):
        if field == _TOKENS:
            text = dict(fields(content)).get(_TEXT)
            if text is None:
                raise ValueError("is damaged: a token has no text")
            yield text.decode(), content


def read_text_tokens(model: bytes) -> dict[str, bytes]:
    """Return the message of each token, by text, other than unknown and control tokens."""
    return {
        text: token
        for text, token in read_tokens(model)
        if dict(fields(token)).get(_TYPE, b"\x01")[0] not in {_UNKNOWN, CONTROL}
    }


def encode_token(text: str, kind: int, score: float = 0.0) -> bytes:
    """Return the message of a token."""
    scored = bytes_field(_TEXT, text.encode()) + _SCORE + struct.pack("<f", score)
    return scored + number_field(_TYPE, kind)


def rank_tokens(tokens: Sequence[bytes]) -> list[bytes]:
    """Return the messages of tokens with the scores 0, -1, -2 and so on, in the former order.

    BPE merges by the order of the scores alone. Control tokens keep theirs.
    """
    messages, ranked = [dict(fields(token)) for token in tokens], list(tokens)
    scores = {
        index: struct.unpack("<f", message[_SCORE_FIELD])[0]
        for index, message in enumerate(messages)
        if message.get(_TYPE, b"\x01")[0] != CONTROL
    }
    for rank, index in enumerate(sorted(scores, key=lambda index: -scores[index])):
        ranked[index] += _SCORE + struct.pack("<f", -float(rank))  # the last occurrence counts
    return ranked


def replace_tokens(
    model: bytes, tokens: Iterable[bytes], special: Sequence[int] = (PAD, UNK, BOS, EOS)
) -> bytes:
    """Return `model` with its tokens replaced by some special tokens and `tokens`.

    Raises ValueError if `model` is not a SentencePiece model.
    """
    first = [
        encode_token(SPECIAL[token_id], _UNKNOWN if token_id == UNK else CONTROL)
        for token_id in special
    ]
    messages = [*first, *tokens]
    replaced = {_TOKENS, _SELF_TEST}
    others = [
        bytes_field(field, content) for field, content in fields(model) if field not in replaced
    ]
    trainer = number_field(_VOCABULARY_SIZE, len(messages))
    for token_id, (id_field, text_field) in _SPECIAL_FIELDS.items():
        index = special.index(token_id) if token_id in special else _ABSENT
        trainer += number_field(id_field, index)
        trainer += bytes_field(text_field, SPECIAL[token_id].encode())
    # The last occurrence of a field counts.
    written = b"".join([*(bytes_field(_TOKENS, message) for message in messages), *others])
    written += bytes_field(_TRAINER, trainer)
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=written)
    except RuntimeError as error:
        raise ValueError("is no SentencePiece model") from error
    return bytes(processor.serialized_model_proto())


def append_tokens(model: bytes, size: int, tokens: Sequence[bytes]) -> bytes:
    """Return a model of `size` tokens with further ones."""
    added = b"".join(bytes_field(_TOKENS, token) for token in tokens)
    counted = bytes_field(_TRAINER, number_field(_VOCABULARY_SIZE, size + len(tokens)))
    processor = sentencepiece.SentencePieceProcessor(model_proto=model + added + counted)
    return bytes(processor.serialized_model_proto())  # the fields in their usual order


def with_normal_form(model: bytes) -> bytes:
    """Return a model that is marked as one of text in its normal form."""
    return model + bytes_field(_NORMALIZER, NORMAL_FORM)


def without_space_in_front(model: bytes) -> bytes:
    """Return a model that encodes text without adding a space in front."""
    return model + bytes_field(_NORMALIZER, _NO_SPACE_IN_FRONT)


def with_rules(model: bytes, rules: Mapping[str, str]) -> bytes:
    """Return a model that normalizes text by rules, as other programs read it."""
    codes = (
        "\t".join(" ".join(f"{ord(character):X}" for character in text) for text in rule)
        for rule in rules.items()
    )
    sentencepiece.set_min_log_level(_ERRORS_ONLY)
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        file.write("".join(f"{line}\n" for line in codes))
        file.flush()
        normalizer = sentencepiece.SentencePieceNormalizer(rule_tsv=file.name)
    compiled = dict(fields(dict(fields(normalizer.serialized_model_proto()))[_NORMALIZER]))
    return model + bytes_field(_NORMALIZER, bytes_field(_CHARACTERS_MAP, compiled[_CHARACTERS_MAP]))


_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
_NO_MESSAGE = "is not a protocol buffers message"


def bytes_field(field: int, content: bytes) -> bytes:
    """Return a field with a message, text or bytes."""
    return varint(field << 3 | _LENGTH_DELIMITED) + varint(len(content)) + content


def number_field(field: int, value: int) -> bytes:
    """Return a field with a number, 0 or more."""
    return varint(field << 3 | _VARINT) + varint(value)


def varint(value: int) -> bytes:
    """Encode a number, 0 or more, in groups of seven bits, lowest first."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each field of a message; numbers stay encoded.

    Raises `ValueError` if the bytes are not a message.
    """
    position = 0
    while position < len(content):
        tag, begin = _read_varint(content, position)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, position = _read_varint(content, begin)
        elif wire_type == _LENGTH_DELIMITED:
            length, begin = _read_varint(content, begin)
            position = begin + length
        elif wire_type in _FIXED_BYTES:
            position = begin + _FIXED_BYTES[wire_type]
        else:
            raise ValueError(_NO_MESSAGE)
        if position > len(content):
            raise ValueError(_NO_MESSAGE)
        yield tag >> 3, content[begin:position]


_VARINT_BITS = 70


def _read_varint(content: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position` and the position after it."""
    value = shift = 0
    while position < len(content) and shift < _VARINT_BITS:
        byte = content[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    raise ValueError(_NO_MESSAGE)


NORMAL_FORM = bytes_field(1, b"mt.data.normalization")
"""Name of the normalizer in a model of text in its normal form."""
