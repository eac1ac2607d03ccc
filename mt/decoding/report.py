"""The forms in which translations are written: text, n-best lists, JSON, lines of the report."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from mt.decoding.details import ExplainingEngine, PieceDetails
from mt.decoding.translation import Alternative, Translation
from mt.decoding.translator import Translator

Form = Literal["text", "n-best", "json"]


def as_text(translations: Sequence[Translation], _: Translator) -> Iterator[str]:
    """Yield the translations alone."""
    return (f"{translation.text}\n" for translation in translations)


def as_n_best(translations: Sequence[Translation], _: Translator) -> Iterator[str]:
    """Yield a line `number ||| text ||| score` for each alternative; numbers from 0, as in Moses.

    Number and score hold no bars, so the first and the last separator are never the text's own.
    """
    for translation in translations:
        number = translation.line_number - 1
        for each in translation.alternatives:
            yield f"{number} ||| {each.text} ||| {each.score:.6f}\n"


def as_json(translations: Sequence[Translation], translator: Translator) -> Iterator[str]:
    """Yield a JSON object a line: the best alternative piece by piece, the status, and all others.

    `piece_log_probs` and `alignment` are null where the engine cannot tell.
    """
    parts = [part for translation in translations for part in translation.alternatives[0].parts]
    details: Iterator[PieceDetails | None] = iter([None] * len(parts))
    if isinstance(translator.engine, ExplainingEngine):
        sources, hypotheses = ([part.source for part in parts], [part.hypothesis for part in parts])
        details = iter(translator.engine.explain(sources, hypotheses))
    for translation in translations:
        best = translation.alternatives[0]
        alternatives = [_alternative(each, translator) for each in translation.alternatives]
        record = {
            "line": translation.line_number,
            "status": translation.status,
            "notes": translation.notes,
            **alternatives[0],
            **_details(best, [next(details) for _ in best.parts], translator),
            "alternatives": alternatives,
        }
        yield json.dumps(record, ensure_ascii=False) + "\n"


FORMS: dict[Form, Callable[[Sequence[Translation], Translator], Iterator[str]]] = {
    "text": as_text,
    "n-best": as_n_best,
    "json": as_json,
}


def report_line(translation: Translation) -> str:
    """Return the line's number, its status and the notes on it, with tabs between."""
    notes = "; ".join(translation.notes)
    return f"{translation.line_number}\t{translation.status}\t{notes}\n"


def _alternative(alternative: Alternative, translator: Translator) -> dict[str, object]:
    name = translator.tokenizer.target.processor.id_to_piece
    return {
        "text": alternative.text,
        "score": alternative.score,
        "log_prob": sum((part.hypothesis.log_prob for part in alternative.parts), start=0.0),
        "pieces": name(list(alternative.ids)),
    }


def _details(
    best: Alternative, details: Sequence[PieceDetails | None], translator: Translator
) -> dict[str, object]:
    """Return the details of all parts as those of one; pieces are counted over all of them."""
    known = [of_part for of_part in details if of_part is not None]
    alignment: list[tuple[int, int]] = []
    read = written = 0
    for part, of_part in zip(best.parts, known, strict=False):
        alignment += [(read + source, written + target) for source, target in of_part.alignment]
        read, written = read + len(part.source) - 1, written + len(part.hypothesis.ids)
    told = len(known) == len(best.parts)
    name = translator.tokenizer.source.processor.id_to_piece
    return {
        "source_pieces": name([number for part in best.parts for number in part.source[:-1]]),
        "piece_log_probs": [each for part in known for each in part.log_probs] if told else None,
        "alignment": alignment if told else None,
    }
