"""Spans of the tokens of lines and translations, for any text and any tokens."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mt.config import DecodingConfig, TokenizerConfig
from mt.config.data import Direction
from mt.data.normalization import normalize_source
from mt.data.tokenizer import Tokenizer, Vocabulary
from mt.data.tokenizer_training import train_model
from mt.decoding.alignment import Link, Span, map_positions, map_spans_to_line
from mt.decoding.engine import Hypothesis, TokenDetails
from mt.decoding.preparation import repair_unicode
from mt.decoding.translator import Translator
from mt.special_ids import EOS
from tests.decoding.fakes import ExplainingFake, UpperCase, build_translator
from tests.factories import LINES_OF_TEXT, foreign_vocabulary

LINES = [f"The {noun} sees  the cat. 你好，世界。" for noun in ("dog", "bird", "fish", "horse")]
NFKC = {"normalization_rule_name": "nmt_nfkc", "model_type": "unigram", "byte_fallback": True}
KINDS: dict[str, Vocabulary] = {
    "bytes": foreign_vocabulary(LINES, 330, byte_fallback=True),
    "nfkc": foreign_vocabulary(LINES, 330, **NFKC),
    "unknown characters": foreign_vocabulary(LINES, 300),
    "tag": foreign_vocabulary(LINES, 332, byte_fallback=True, control_symbols=["<de>"]),
}


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    tokenizers = {kind: Tokenizer(words, words, "") for kind, words in KINDS.items()}
    return {**tokenizers, "tag": tokenizers["tag"].tagged("<de>")}


Align = Callable[[int, int], Iterable[tuple[int, int]]]


class Answers(ExplainingFake):
    """Answers the sources with some targets in turn, aligned by a function of their lengths."""

    def __init__(self, targets: Sequence[Sequence[int]], align: Align) -> None:
        self.targets, self.align = targets, align

    def n_best_ids(self, sources: Any, *_: Any, **__: Any) -> list[list[Hypothesis]]:
        targets = [self.targets[place % len(self.targets)] for place in range(len(sources))]
        return [[Hypothesis(tuple(ids), -1.0, -1.0, finished=True)] for ids in targets]

    def explain(self, sources: Any, hypotheses: Any) -> list[TokenDetails]:
        return [
            TokenDetails((), tuple(self.align(len(source) - 1, len(hypothesis.ids))))
            for source, hypothesis in zip(sources, hypotheses, strict=True)
        ]


def all_to_all(sources: int, targets: int) -> Iterable[tuple[int, int]]:
    return ((source, target) for target in range(targets) for source in range(sources))


def one_to_one(sources: int, targets: int) -> Iterable[tuple[int, int]]:
    return ((token, token) for token in range(min(sources, targets)))


def translator(engine: ExplainingFake, tokenizer: Tokenizer, split: str = "on") -> Translator:
    keys = {"split_sentences": split, "tag": tokenizer.tag, "repair": "off"}
    direction = Direction("en", "de")
    decoding = DecodingConfig.model_validate(keys)
    return Translator(engine, tokenizer, decoding, longest_source=15, direction=direction)


def without_space(text: str) -> str:
    return "".join(text.split())


ESCAPES = {*"\U000f2581_=\ufffd"}
"""Characters of escapes, and the text of unknown ones."""


def plain_tokens(parts: Iterable[Sequence[int]], vocabulary: Vocabulary) -> Iterator[str]:
    """Yield the text of each token that does not depend on its neighbours."""
    for number in (number for part in parts for number in part):
        text = without_space(vocabulary.decode([number]))
        if text and not vocabulary.processor.is_byte(number) and not {*text} & ESCAPES:
            yield text


def check(spans: Iterable[Span], line: str, tokens: Iterable[str], form: str | None) -> None:
    """Spans are in order, cover the line, and have the text of the tokens."""
    ordered = list(dict.fromkeys(spans))
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(ordered))
    covered = {place for start, end in ordered for place in range(start, end)}
    assert covered >= {place for place, each in enumerate(line) if not each.isspace()}
    assert all(line[start:end].strip() == line[start:end] != "" for start, end in ordered)
    texts = iter([without_space(repair_unicode(line[start:end])[0]) for start, end in ordered])
    if form is None:
        assert all(token in texts for token in tokens), "each follows the one before it"
    else:
        text = next(texts, "")
        for token in tokens:
            while token not in normalize("NFKC", text):
                text = next(texts, "")


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=50)
@given(
    line=st.lists(LINES_OF_TEXT, min_size=1, max_size=3).map(" Yes, it is. ".join),
    targets=st.lists(LINES_OF_TEXT | st.lists(st.integers(0, 999)), min_size=1, max_size=4),
    split=st.sampled_from(["on", "off"]),
)
@example(
    line=" The ▁ dog. \U000f2581_\ufb01ne ｶﾞ\r\n a\udce4\udcbd\udca0 b\ud800",
    targets=["The \U000f2581", "▁_"],
    split="on",
)
def test_spans_have_the_text_of_their_tokens(
    tokenizers: dict[str, Tokenizer], kind: str, line: str, targets: list[Any], split: str
) -> None:
    tokenizer = tokenizers[kind]
    every = [
        tokenizer.encode_target([each])[0][:-1]
        if isinstance(each, str)
        else [EOS + 1 + number % (tokenizer.target_size - EOS - 1) for number in each]
        for each in targets
    ]
    made = translator(Answers(every, all_to_all), tokenizer, split)
    [translation] = made.stream([line])
    [links] = made.find_links([translation])
    parts = translation.alternatives[0].parts
    written = [part.hypothesis.ids for part in parts]
    check(
        [link.target for link in links],
        translation.text,
        plain_tokens(written, tokenizer.target),
        None,
    )
    if all(tokenizer.decode_target(ids).strip() for ids in written):
        check(
            sorted((link.source for link in links), key=lambda span: (span[1], span[0])),
            translation.source,
            plain_tokens((part.source for part in parts), tokenizer.source),
            "NFKC" if kind == "nfkc" else None,
        )


def test_lines_of_several_parts_are_linked_part_by_part(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["tag"]
    lines = [" The dog.  The fish sees. 你", "", "世界。"]
    targets = [ids[:-1] for ids in tokenizer.encode_target(["The cat.", "the"])]
    made = translator(Answers(targets, lambda s, t: [(0, 0), (1, 0), (s - 1, t - 1)]), tokenizer)
    translations = [*made.stream(lines)]
    assert [each.text for each in translations] == [" The cat.  the The cat.", "", "the"]
    found = [
        [(line[slice(*link.source)], link.target) for link in links or ()]
        for line, links in zip(lines, made.find_links(translations), strict=True)
    ]
    first = [("The", (1, 4)), (".", (8, 9)), ("The", (11, 14)), (".", (11, 14))]
    assert found == [
        [*first, ("你", (15, 18)), ("你", (22, 23))],
        [],
        [("世界", (0, 3)), ("。", (0, 3))],
    ], "the first source token is the tag and has no link"


@pytest.mark.parametrize(
    "line",
    [
        "The dog sees  the cat.",
        "\ufeffThe\xa0do\xadg\u200b sees\u3000the\u202fcat.\u200b",
        "Ｔｈｅ\u2009dog ｓｅｅｓ　 the cat\u2060．",
        "The d\u0300og\xa0se\u0301es the ｶﾞ cat. \xad  你好，\u200b世界。\xa0The dog.",
    ],
)
@pytest.mark.parametrize("split", ["on", "off"])
def test_links_are_to_the_characters_of_the_line_as_it_is(line: str, split: str) -> None:
    class Echo(Answers):
        """Returns the sources."""

        def n_best_ids(self, sources: Any, *_: Any, **__: Any) -> list[list[Hypothesis]]:
            return [[Hypothesis(tuple(ids[:-1]), -1.0, -1.0, finished=True)] for ids in sources]

    words = Vocabulary.from_model(train_model(LINES, TokenizerConfig(vocabulary_size=330)))
    made = translator(Echo((), one_to_one), Tokenizer(words, words, ""), split)
    [translation] = made.stream([line])
    assert translation.source == line
    assert normalize_source(translation.text) == normalize_source(line)
    [links] = made.find_links([translation])
    texts = [(line[slice(*link.source)], translation.text[slice(*link.target)]) for link in links]
    assert [normalize_source(left) for left, _ in texts] == [right for _, right in texts]
    linked = {place for link in links for place in range(*link.target)}
    assert linked == {i for i, c in enumerate(translation.text) if not c.isspace()}


def test_other_engines_have_no_links() -> None:
    made = build_translator(UpperCase())
    assert made.find_links([*made.stream(["a", ""])]) == [(), ()]


def test_places_are_carried_over_changed_text() -> None:
    texts = ["See now.", "Ein Mann steht. Straße"]
    line = " SEE https://a.b NOW. EIN MANN 12 STEHT. STRASSE!"
    spans = [[(0, 3), (4, 7), (7, 8)], [(4, 8), (9, 15), (16, 22), (14, 15)]]
    found = list(map_spans_to_line(spans, texts, line))
    written = [[line[slice(*each)] if each else None for each in some] for some in found]
    assert written == [["SEE", "NOW", "."], ["MANN", "STEHT.", "STRASS", "."]]
    [[gone]] = map_spans_to_line([[(0, 5)]], ["there"], "here and there was")
    assert gone == (9, 14)
    assert list(map_spans_to_line([[(0, 4)]], ["gone"], "here and there")) == [[None]]


@pytest.mark.parametrize(
    ("offset", "place"), [(0, 0), (5, 14), (11, 18), (15, 8), (20, 24), (21, 25)]
)
def test_a_place_is_beside_the_aligned_word(offset: int, place: int) -> None:
    source, target = "I saw red cars today.", "Ich sah heute rote Autos."
    pairs = {"I": "Ich", "saw": "sah", "red": "rote", "cars": "Autos", "today": "heute", ".": "."}
    links = [
        Link(
            (source.index(left), source.index(left) + len(left)),
            (target.index(right), target.index(right) + len(right)),
        )
        for left, right in pairs.items()
    ]
    assert map_positions(links, source, target)(offset) == place
