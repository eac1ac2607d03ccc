"""New pieces for a vocabulary that is there: their ids follow the old ones, which stay.

A SentencePiece model is a protobuf message, and two such messages written one after the other are
one, with the entries of both (https://protobuf.dev/programming-guides/encoding/#last-one-wins).
So a piece is added by appending a few bytes.
"""

import logging
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from mt.config.tokenizer import TokenizerConfig
from mt.data.protobuf import bytes_field, number_field
from mt.data.tokenizer_training import learn, text_sample
from mt.data.vocabulary import Vocabulary
from mt.special_ids import UNK

# Fields of ModelProto, and of the messages inside it, in sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT = 1
_PIECE_SCORE = b"\x15"
_CONTROL = b"\x18\x03"
_VOCABULARY_SIZE = 4
_NO_SPACE_IN_FRONT = b"\x18\x00"

_EXAMPLES = 5

_logger = logging.getLogger(__name__)


def extend_model(
    model: bytes, lines: Iterable[str], *, config: TokenizerConfig, seed: int
) -> bytes:
    """Return a SentencePiece model with `tags`, and up to `added_pieces` learnt from `lines`.

    Those learnt are what a vocabulary trained on the lines has and the old one lacks: first single
    characters, then longer pieces, both as frequent as they come. Old pieces keep ids and scores.
    Text that holds no new piece is cut as before, since a new piece comes in only where all of it
    stands: in BPE it is joined after all old pieces, in a unigram model it is one more choice.
    """
    old = Vocabulary.from_model(model)
    tags = [tag for tag in dict.fromkeys(config.tags) if tag not in old.tags]
    if tags:
        old = Vocabulary.from_model(_with_tags(old, tags))
    wanted = config.added_pieces
    if not wanted:
        return old.processor.serialized_model_proto() if tags else model
    sample = text_sample(lines, config.sample_lines, seed=seed)
    pieces = _usable(old, _lacking(old, sample, config), wanted)
    if pieces:
        _logger.info(
            "tokenizer: %s new pieces after the %s old ones, such as %s",
            *(f"{len(pieces):,}", f"{len(old):,}", shown_pieces(pieces)),
        )
    if len(pieces) < wanted:
        _logger.warning(
            "tokenizer: the text has only %s pieces to add to the old tokenizer, "
            "`tokenizer.added_pieces` allows %s",
            *(f"{len(pieces):,}", f"{wanted:,}"),
        )
    return _with_pieces(old, pieces)


@dataclass(frozen=True, slots=True)
class FormerRow:
    """What an older vocabulary has for a piece: its own id, or those of the parts of a new one."""

    piece: str
    ids: tuple[int, ...]
    is_new: bool


def former_rows(new: Vocabulary, old: Vocabulary) -> list[FormerRow]:
    """Return for each piece of `new` what `old` has for it.

    A piece that `old` lacks is cut by it like any text, into bytes where need be; a byte that it
    lacks is UNK.
    """
    pieces: list[str] = new.processor.id_to_piece(list(range(len(new))))
    same = old.processor.piece_to_id(pieces)
    cut = _without_space_in_front(old.processor.serialized_model_proto()).processor.encode
    rows = []
    for number, (piece, known) in enumerate(zip(pieces, same, strict=True)):
        is_new = known == UNK and number != UNK
        ids = cut(piece) if is_new and not new.processor.is_byte(number) else [known]
        rows.append(FormerRow(piece, tuple(ids), is_new))
    return rows


def shown_pieces(pieces: Iterable[str]) -> str:
    """Return the first few pieces for a message; U+2581 stands for a space."""
    return ", ".join(f"`{piece}`" for piece in list(pieces)[:_EXAMPLES])


def _lacking(old: Vocabulary, sample: list[str], config: TokenizerConfig) -> dict[str, float]:
    """Return the pieces, and scores, that a vocabulary trained on the sample has and `old` lacks.

    Characters come first.
    """
    characters = len(set().union(*sample))
    settings = {
        "algorithm": old.algorithm,
        "tags": tuple(old.tags),
        "vocabulary_size": len(old) + config.added_pieces + characters,
    }
    found = Vocabulary.from_model(learn(sample, config.model_copy(update=settings)))
    scores = {text: found.processor.get_score(number) for number, text in found.texts().items()}
    known = old.processor.piece_to_id(list(scores))
    lacking = [text for text, number in zip(scores, known, strict=True) if number == UNK]
    lacking.sort(key=lambda text: len(text) > 1)
    return {text: scores[text] for text in lacking}


def _usable(old: Vocabulary, scores: dict[str, float], count: int) -> dict[str, float]:
    """Return the first `count` pieces that the extended vocabulary makes use of.

    A piece that is not made of its own text is made of none: in BPE, old pieces that lie across
    its parts are joined first.
    """
    pieces = list(scores)
    while True:
        chosen = {piece: scores[piece] for piece in pieces[:count]}
        cut = _without_space_in_front(_with_pieces(old, chosen)).processor.encode
        unused = {piece for piece in chosen if len(cut(piece)) > 1}
        if not unused:
            return chosen
        pieces = [piece for piece in pieces if piece not in unused]


def _with_tags(old: Vocabulary, tags: list[str]) -> bytes:
    """Return the model of `old` with pieces that no text gives."""
    added = [
        bytes_field(_PIECES, bytes_field(_PIECE_TEXT, tag.encode()) + _CONTROL) for tag in tags
    ]
    counted = bytes_field(_TRAINER, number_field(_VOCABULARY_SIZE, len(old) + len(tags)))
    model: bytes = old.processor.serialized_model_proto() + b"".join(added) + counted
    return model


def _with_pieces(old: Vocabulary, scores: dict[str, float]) -> bytes:
    """Return the model of `old` with new pieces; of BPE the scores are ranks, after all old ones.

    No score is below the old ones of a unigram model: what it gives to characters that it does not
    know hangs on the lowest.
    """
    known: list[float] = old.processor.get_score(list(old.texts()))
    is_bpe, lowest = old.algorithm == "bpe", min(known)
    added = []
    for rank, (piece, score) in enumerate(scores.items(), start=len(known)):
        kept = -rank if is_bpe else max(score, lowest)
        text = bytes_field(_PIECE_TEXT, piece.encode())
        added.append(bytes_field(_PIECES, text + _PIECE_SCORE + struct.pack("<f", kept)))
    counted = bytes_field(_TRAINER, number_field(_VOCABULARY_SIZE, len(old) + len(scores)))
    model = old.processor.serialized_model_proto() + b"".join(added) + counted
    # Written by SentencePiece, the fields are in their usual order.
    written: bytes = Vocabulary.from_model(model).processor.serialized_model_proto()
    return written


def _without_space_in_front(model: bytes) -> Vocabulary:
    """Return a vocabulary that reads a piece's text as it is: encoding else adds a space."""
    return Vocabulary.from_model(model + bytes_field(_NORMALIZER, _NO_SPACE_IN_FRONT))
