"""The vocabularies of a Marian folder as SentencePiece models of ours.

Marian has ids of its own, in vocab.json, and SentencePiece only cuts the text. Here the ids of the
SentencePiece model are those of the embeddings' rows, the special ones first. So the models are
written anew, with the same pieces, scores and normalisation, and with them which row each id takes.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mt.data.protobuf import bytes_field, fields, number_field
from mt.data.vocabulary import Vocabulary
from mt.special_ids import BOS, EOS, PAD, UNK

# Fields of ModelProto, TrainerSpec and SentencePiece in sentencepiece_model.proto.
_PIECES, _TRAINER, _SELF_TEST = 1, 2, 4
_VOCABULARY_SIZE = 4
_SPECIAL_IDS = {UNK: 40, BOS: 41, EOS: 42, PAD: 43}
_SPECIAL_TEXTS = {UNK: 45, BOS: 46, EOS: 47, PAD: 48}
_TEXT, _SCORE, _TYPE = 1, b"\x15", 3
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_LAST = -1e6
"""A score below all others: what BPE joins to a piece that it then may not use, it joins last."""
_SPECIAL = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}


@dataclass(frozen=True, slots=True)
class MarianRows:
    """Marian's ids: of the pieces of one side, and of what is no text."""

    pieces: Mapping[str, int]
    """What vocab.json says."""
    count: int
    """Rows of the embedding, at least as many as there are ids."""
    pad: int
    unk: int
    start: int
    """What the decoder begins with; often `pad`."""
    eos: int

    def special(self) -> list[int]:
        """Return the rows of our special pieces, in the order of their ids."""
        rows = {PAD: self.pad, UNK: self.unk, BOS: self.start, EOS: self.eos}
        return [rows[number] for number in sorted(rows)]


def source_vocabulary(model: bytes, marian: MarianRows) -> tuple[bytes, list[int]]:
    """Return a SentencePiece model of ours that cuts as `model` does, and each id's row.

    A piece that Marian does not know has the row of its unknown piece. A language such as
    `>>deu<<` that Marian knows is one piece where a text begins with it. Raises ValueError where
    `model` is no SentencePiece model.
    """
    pieces = [*_text_pieces(model)]
    # SentencePiece puts its space mark in front of a text.
    languages = [text for text in marian.pieces if text.startswith(">>") and text.endswith("<<")]
    named = [_piece(f"\u2581{text}", _USER_DEFINED) for text in languages]
    rows = [marian.pieces.get(text, marian.unk) for text, _ in pieces]
    rows += [marian.pieces[text] for text in languages]
    return _model(model, [*(piece for _, piece in pieces), *named]), [*marian.special(), *rows]


def target_vocabulary(model: bytes, marian: MarianRows) -> tuple[bytes, list[int]]:
    """Return a SentencePiece model of ours with all that Marian can say, and each id's row.

    What `model` has and Marian lacks is left out; what Marian has beyond it is never cut into, but
    has its text. Raises ValueError where `model` is no SentencePiece model.
    """
    pieces = [(text, piece) for text, piece in _text_pieces(model) if text in marian.pieces]
    rows = [marian.pieces[text] for text, _ in pieces]
    taken = {text for text, _ in pieces} | {*_SPECIAL.values()}
    texts = {row: text for text, row in marian.pieces.items()}
    others = []
    for row in sorted({*range(marian.count)} - {*rows, *marian.special()}):
        text = texts.get(row, f"<row {row}>")
        others.append(_piece(text if text not in taken else f"{text} {row}", _UNUSED, _LAST))
        rows.append(row)
    return _model(model, [*(piece for _, piece in pieces), *others]), [*marian.special(), *rows]


def _text_pieces(model: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield text and bytes of each piece that is neither unknown nor a control mark."""
    for field, content in fields(model):
        if field == _PIECES:
            found = dict(fields(content))
            kind = found.get(_TYPE, b"\x01")[0]
            if kind not in {_UNKNOWN, _CONTROL}:
                yield found[_TEXT].decode(), content


def _piece(text: str, kind: int, score: float = 0.0) -> bytes:
    scored = bytes_field(_TEXT, text.encode()) + _SCORE + struct.pack("<f", score)
    return scored + number_field(_TYPE, kind)


def _model(model: bytes, pieces: list[bytes]) -> bytes:
    """Return `model` with our special pieces and then `pieces` instead of its own."""
    special = [
        _piece(text, _UNKNOWN if number == UNK else _CONTROL)
        for number, text in sorted(_SPECIAL.items())
    ]
    every = [*special, *pieces]
    kept = [
        bytes_field(field, content)
        for field, content in fields(model)
        if field not in {_PIECES, _SELF_TEST}
    ]
    trainer = number_field(_VOCABULARY_SIZE, len(every))
    for number, text in _SPECIAL.items():
        trainer += number_field(_SPECIAL_IDS[number], number)
        trainer += bytes_field(_SPECIAL_TEXTS[number], text.encode())
    # Of a field that is written twice, the last one counts.
    written = b"".join([*(bytes_field(_PIECES, piece) for piece in every), *kept])
    ours = Vocabulary.from_model(written + bytes_field(_TRAINER, trainer))
    serialized: bytes = ours.processor.serialized_model_proto()
    return serialized
