import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mt.config import DecodingConfig
from mt.decoding.engine import ExplainingEngine, Hypothesis, TargetPrefixes, TokenDetails
from mt.decoding.files import as_json, as_n_best, as_text, report_line
from mt.decoding.translator import Alternative, Part, Translation, Translator

ONE = Part([50, 51, 3], Hypothesis((5, 6), -3.0, -0.25, finished=True))
TWO = Part([52, 3], Hypothesis((7,), -1.0, -0.25, finished=True))
OTHER = Part([52, 3], Hypothesis((8, 9), -4.0, -1.0, finished=True))
BEST = Alternative('a ||| b\u2028"é', -0.5, (ONE, TWO))
WORSE = Alternative("c", -1.25, (ONE, OTHER))
BLANK = Translation(1, " ", "", "empty", 0.0, alternatives=(Alternative("", 0.0, ()),))
SPLIT = Translation(3, "x", BEST.text, "split", -0.5, ("one", "two"), alternatives=(BEST, WORSE))


class Explaining(ExplainingEngine):
    """Every token has its own number for a log-probability and looks at the first of the source."""

    def n_best_ids(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        *,
        prefixes: TargetPrefixes = (),
    ) -> list[list[Hypothesis]]:
        raise AssertionError("nothing is left to search for")

    def explain(
        self, sources: Sequence[Sequence[int]], hypotheses: Sequence[Hypothesis]
    ) -> list[TokenDetails]:
        assert list(zip(sources, hypotheses, strict=True)) == [
            (part.source, part.hypothesis) for part in (ONE, TWO)
        ]
        return [
            TokenDetails(
                tuple(-float(number) for number in each.ids),
                tuple((0, place) for place in range(len(each.ids))),
            )
            for each in hypotheses
        ]


def translator(engine: object = None) -> Translator:
    processor = SimpleNamespace(id_to_piece=lambda ids: [f"▁{each}" for each in ids])
    side = SimpleNamespace(processor=processor)
    tokenizer = SimpleNamespace(source=side, target=side)
    return cast("Translator", SimpleNamespace(engine=engine, tokenizer=tokenizer))


def test_text_is_the_best_alone() -> None:
    assert [*as_text([BLANK, SPLIT], translator())] == ["\n", 'a ||| b\u2028"é\n']


def test_an_n_best_list_counts_from_0_and_has_a_line_for_every_line() -> None:
    empty, *listed = as_n_best([BLANK, SPLIT], translator())
    assert empty == "0 |||  ||| 0.000000\n"
    assert listed == ['2 ||| a ||| b\u2028"é ||| -0.500000\n', "2 ||| c ||| -1.250000\n"]
    number, _, rest = listed[0].partition(" ||| ")
    text, _, score = rest.rpartition(" ||| ")
    assert (int(number), text, float(score)) == (2, BEST.text, BEST.score)


@pytest.mark.parametrize(
    ("engine", "log_probs", "alignment"),
    [(Explaining(), [-5.0, -6.0, -7.0], [[0, 0], [0, 1], [2, 2]]), (None, None, None)],
)
def test_json_is_an_object_a_line(
    engine: object, log_probs: list[float] | None, alignment: list[list[int]] | None
) -> None:
    empty, written = as_json([BLANK, SPLIT], translator(engine))
    assert written.count("\n") == 1
    assert "é" in written
    best: dict[str, Any] = {
        "text": BEST.text,
        "score": -0.5,
        "log_prob": -4.0,
        "tokens": ["▁5", "▁6", "▁7"],
    }
    other = {"text": "c", "score": -1.25, "log_prob": -7.0, "tokens": ["▁5", "▁6", "▁8", "▁9"]}
    assert json.loads(written) == {
        "line": 3,
        "status": "split",
        "notes": ["one", "two"],
        **best,
        "source_tokens": ["▁50", "▁51", "▁52"],
        "token_log_probs": log_probs,
        "alignment": alignment,
        "alternatives": [best, other],
    }
    record = json.loads(empty)
    assert (record["text"], record["tokens"], record["token_log_probs"]) == ("", [], [])


def test_the_report_has_number_status_and_notes() -> None:
    assert report_line(SPLIT) == "3\tsplit\tone; two\n"
    assert report_line(BLANK) == "1\tempty\t\n"
