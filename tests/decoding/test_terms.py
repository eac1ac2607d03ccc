"""Terms of a glossary in translations: shown to the model, put in place, and reported."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mt.config import DecodingConfig
from mt.config.data import TERM_TAGS, Direction
from mt.data.glossary import Glossary, as_terms
from mt.data.placeholders import TaggedText
from mt.data.tokenizer import Tokenizer
from mt.decoding.alignment import without_terms
from mt.decoding.confidence import mean_log_prob
from mt.decoding.engine import Hypothesis, TokenDetails
from mt.decoding.text_files import report_row
from mt.decoding.translator import Translation, Translator
from tests.decoding.fakes import ExplainingFake
from tests.factories import Program, foreign_vocabulary

LINES = [
    "the black cats see a dog and 25 birds . The Dog sees 25 cats !",
    "die schwarzen Katzen sehen einen Hund und 25 Vögel . Der Hund sieht 25 Katzen !",
    "Mieze Köter 我的电脑 你好，世界。 a-b",
]
PLAIN = foreign_vocabulary(LINES, 160)
SHOWN = foreign_vocabulary(LINES, 162, control_symbols=[*TERM_TAGS])


class Dictionary(ExplainingFake):
    """Engine that translates word by word, in order, and aligns each word with its source word.

    A shown term is ignored. A target word is likely if one of the source words has it as target.
    """

    def __init__(self, tokenizer: Tokenizer, table: dict[str, str]) -> None:
        self.tokenizer, self.table = tokenizer, table
        self.sources: list[str] = []

    def n_best_ids(self, sources: Any, *_: Any, **__: Any) -> list[list[Hypothesis]]:
        found = []
        for source in sources:
            pieces = self.tokenizer.source.processor.id_to_piece(list(source[:-1]))
            self.sources.append("".join(pieces).replace("\u2581", " ").strip())
            text = " ".join(filter(None, (self.table.get(w, w) for w, _ in self.words(source))))
            [ids] = self.tokenizer.encode_target([text])
            found.append([Hypothesis(tuple(ids[:-1]), -1.0, -1.0, finished=True)])
        return found

    def words(self, source: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Return the words of a source with their tokens, without shown terms."""
        words: list[tuple[str, list[int]]] = []
        first, last = self.tokenizer.term_ids or (-1, -1)
        is_shown = False
        for place, token in enumerate(source[:-1]):
            is_shown = is_shown or token == first
            piece = self.tokenizer.source.processor.id_to_piece(int(token))
            if not is_shown and (piece[0] == "\u2581" or not words):
                words.append((piece[1:], [place]))
            elif not is_shown:
                words[-1] = (words[-1][0] + piece, [*words[-1][1], place])
            is_shown = is_shown and token != last
        return words

    def explain(self, sources: Any, hypotheses: Any) -> list[TokenDetails]:
        details = []
        for source, hypothesis in zip(sources, hypotheses, strict=True):
            owners = [
                places[0]
                for word, places in self.words(source)
                for target in self.table.get(word, word).split()
                for _ in self.tokenizer.encode_target([target])[0][:-1]
            ]
            pairs = tuple(zip(owners, range(len(hypothesis.ids)), strict=False))
            [scores] = self.score([source], [hypothesis.ids])
            details.append(TokenDetails(tuple(scores), pairs))
        return details

    def score(self, sources: Any, targets: Any) -> list[list[float]]:
        rows = []
        for source, target in zip(sources, targets, strict=True):
            known = {
                token
                for word, _ in self.words(source)
                for written in self.table.get(word, word).split()
                for token in self.tokenizer.encode_target([written])[0][:-1]
            }
            rows.append([-0.1 if token in known else -9.0 for token in target])
        return rows


def build(table: dict[str, str], *, shown: bool = False, longest: int = 60) -> Translator:
    words = SHOWN if shown else PLAIN
    tokenizer = Tokenizer(words, words, "")
    return Translator(
        Dictionary(tokenizer, table),
        tokenizer,
        DecodingConfig(split_sentences="off"),
        longest_source=longest,
        direction=Direction("en", "de"),
    )


TABLE = {
    "the": "die",
    "The": "Die",
    "cats": "Katzen",
    "see": "sehen",
    "a": "einen",
    "dog": "Hund",
    "Dog": "Hund",
    "black": "schwarzen",
    "birds": "Vögel",
}


def translate(glossary: Any, line: str, table: dict[str, str] = TABLE, **keys: Any) -> Translation:
    [translation] = build(table, **keys).stream([line], glossary=as_glossary(glossary))
    return translation


def as_glossary(rows: Any) -> Glossary:
    return Glossary(as_terms(rows), Direction("en", "de"))


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize(
    ("glossary", "line", "text", "ways"),
    [
        ({"cats": "Katzen"}, "the cats see", "die Katzen sehen", "model"),
        ({"cats": "Katze"}, "the cats see", "die Katze sehen", "placed"),
        ({"cats": "Kater|Katzen"}, "the cats", "die Katzen", "model"),
        ({"dog": "Köter"}, "see a dog !", "sehen einen Köter !", "placed"),
        ({"a dog": "den Köter"}, "see a dog", "sehen den Köter", "placed"),
        ({"dog": "Köter"}, "see a Dog", "sehen einen Hund", ""),
        ({"dog|Dog": "Köter"}, "see a Dog", "sehen einen Köter", "placed"),
        ({"see": "blicken"}, "see a dog", "blicken einen Hund", "placed"),
        ({"the": "jene"}, "The dog", "Jene Hund", "placed"),
        ({"dog": "Köter"}, "dog a dog", "Köter einen Köter", "placed placed"),
        (
            {"dog": "Köter", "cats": "Mieze"},
            "cats see a dog",
            "Mieze sehen einen Köter",
            "placed placed",
        ),
        ({"dog": "Köter"}, "25 dog 25", "25 Köter 25", "placed"),
        ({"fish": "Fisch"}, "the cats see", "die Katzen sehen", ""),
        ({"dog": "dog"}, "a dog", "einen dog", "placed"),
        # A compound with a hyphen is one word, and two words of one term are replaced together.
        ({"birds": "Köter"}, "see birds !", "sehen Köter !", "placed"),
        ({"bee": "Biene"}, "see a bee !", "sehen einen Biene !", "placed"),
    ],
)
def test_a_term_that_is_missing_replaces_the_aligned_words_alone(
    glossary: Any, line: str, text: str, ways: str, shown: bool
) -> None:
    table = TABLE | {"birds": "Katzen-Hund", "bee": "schwarzen Vögel"}
    translation = translate(glossary, line, table, shown=shown)
    assert translation.text == text
    assert " ".join(use.way for use in translation.terms) == ways
    assert (translation.status, translation.notes) == ("ok", ())
    assert translation.needs_review is ("placed" in ways)
    assert {use.target for use in translation.terms} <= {*text.split(), text.partition(" ")[2]}
    plain = translate({}, line, table, shown=shown)
    assert mean_log_prob(translation.alternatives[0].parts) == mean_log_prob(
        plain.alternatives[0].parts
    ), "confidence is that of own words"


@pytest.mark.parametrize(
    ("text", "losses", "alone", "placed"),
    [
        ("我的电脑", [0, 0, 5, 5], "", "我的桌子"),
        ("我的电脑", [0, 0, 5, 0], "", "我的桌子"),  # half of a word
        ("我的电脑", [0.1, 0.1, 0.2, 0], "", None),  # hardly any loss
        ("我的电脑", [1, 0, 0.4, 0], "电脑", "我的桌子"),  # the term alone makes it likely
        ("我的电脑", [0, 0, 0.1, 0], "电脑", "我的桌子"),  # nothing but the term alone tells
        ("电脑的电脑", [0, 0, 0, 0.1, 0], "电脑", None),  # it tells two words
        # A counter or a verb before the word depends on it as well.
        ("带一把雨伞。", [0, 2, 2, 3, 1, 0], "", "带一把桌子。"),
        ("他骑自行车。", [0, 5, 0, 0, 0, 0], "自行车", "他骑桌子。"),
        ("坐地铁到", [4, 4, 4, 0], "", "坐桌子到"),
        # What follows belongs to it only if it is likely for the term alone.
        ("在图书馆看", [0, 5, 0, 0, 0], "图书馆", "在桌子看"),
        ("在图书馆看", [0, 5, 0, 0, 0], "", "在桌子馆看"),
        # The term is not written twice into a longer word that holds it.
        ("是大学生", [0, 0, 0, 5], "", "是大学生"),
    ],
)
def test_whole_words_are_replaced_in_scripts_without_spaces(
    text: str, losses: list[float], alone: str, placed: str | None
) -> None:
    class Characters(Dictionary):
        """Engine whose characters lose log-probability without `dog` in the source."""

        def n_best_ids(self, sources: Any, *_: Any, **__: Any) -> list[list[Hypothesis]]:
            texts = [alone if self.written(source) == "dog" else text for source in sources]
            ids = [tuple(self.tokenizer.target.processor.piece_to_id([*each])) for each in texts]
            return [[Hypothesis(own, -1.0, -1.0, finished=True)] for own in ids]

        def written(self, source: Any) -> str:
            return " ".join(word for word, _ in self.words(source))

        def score(self, sources: Any, targets: Any) -> list[list[float]]:
            rows = []
            for source, target in zip(sources, targets, strict=True):
                written = self.tokenizer.target.processor.id_to_piece([*map(int, target)])
                rows.append(
                    {
                        "see dog cats": [-0.1] * len(text),
                        "see cats": [-0.1 - loss for loss in losses],
                        "dog": [-0.1 if character in alone else -9.0 for character in written],
                        "": [-1.1 if character in alone else -9.0 for character in written],
                    }[self.written(source)]
                )
            return rows

    translator = build({})
    lines = [*LINES, "带一把雨伞 他骑自行车 坐地铁到 在图书馆看 是大学生。"]
    words = foreign_vocabulary(lines, 190)
    translator.tokenizer = Tokenizer(words, words, "")
    translator.engine = Characters(translator.tokenizer, {})
    glossary = as_glossary({"dog": "学生" if "学生" in text else "桌子"})
    [translation] = translator.stream(["see dog cats"], glossary=glossary)
    assert translation.text == (placed or text)
    ways = {None: "", text: "model"}
    assert [use.way for use in translation.terms] == [ways.get(placed, "placed")]


def test_a_word_alone_may_be_translated_twice() -> None:
    class Stammering(Dictionary):
        """Engine that repeats single words, and whose translations depend on no single word."""

        def n_best_ids(self, sources: Any, *_: Any, **__: Any) -> list[list[Hypothesis]]:
            found = super().n_best_ids(sources)
            repeats = [1 + (len(self.words(source)) == 1) for source in sources]
            return [
                [replace(best, ids=best.ids * times)]
                for [best], times in zip(found, repeats, strict=True)
            ]

        def score(self, sources: Any, targets: Any) -> list[list[float]]:
            each = [-0.1 if self.words(source) else -5.0 for source in sources]
            return [[score] * len(target) for score, target in zip(each, targets, strict=True)]

    translator = build(TABLE)
    translator.engine = Stammering(translator.tokenizer, TABLE)
    [text] = translator.translate(["see a dog"], glossary={"dog": "Köter"})
    assert text == "sehen einen Köter"


def test_a_forced_beginning_stays() -> None:
    translator = build(TABLE)
    glossary = as_glossary({"dog": "Köter", "cats": "Kater"})
    stream = translator.stream(["cats see a dog"], prefixes=["Katzen sehen"], glossary=glossary)
    [translation] = stream
    assert translation.text == "Katzen sehen einen Köter"
    assert [use.fate for use in translation.terms] == ["missed", "used"]


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize(
    ("line", "table", "text"),
    [
        ("see 25 dog", {"dog": ""}, "see 25"),  # no aligned word
        ("see a dog", {"dog": "!"}, "see a !"),
    ],
)
def test_a_term_without_a_place_is_reported(
    line: str, table: dict[str, str], text: str, shown: bool
) -> None:
    translation = translate({"dog": "Köter"}, line, table, shown=shown)
    assert translation.text == text
    assert translation.notes[-1] == "terms not in the translation: `Köter` for `dog`"
    assert translation.status in {"missed-term", "altered"}
    number, status, *_, notes = report_row(translation)
    assert (number, status) == ("1", translation.status)
    assert notes.endswith("; terms: dog → Köter: missed")


def test_a_model_that_learned_terms_reads_them_behind_their_source_terms() -> None:
    translator = build(TABLE, shown=True)
    engine = translator.engine
    assert isinstance(engine, Dictionary)
    glossary = {"dog": "Köter", "black cats": "Mieze"}
    line = "the black cats see a dog !"
    [translation] = translator.stream([line], glossary=as_glossary(glossary))
    first, last = TERM_TAGS
    shown = f"the black cats{first} Mieze{last} see a dog{first} Köter{last} !"
    assert {*engine.sources} == {shown, "dog", "black cats"}, "a term to be placed is read alone"
    [part] = translation.alternatives[0].parts
    [plain] = translator.tokenizer.encode_source([line])
    assert translator.tokenizer.term_ids is not None
    assert without_terms(part.source, translator.tokenizer.term_ids) == plain != part.source
    assert translation.text == "die Mieze sehen einen Köter !"
    [links] = translator.find_links([translation])
    pairs = {(line[slice(*a.source)], translation.text[slice(*a.target)]) for a in links}
    assert ("!", "!") in pairs, "places are those of the line without the terms"
    assert {("black cats", "Mieze"), ("dog", "Köter")} < pairs
    assert [link.target for link in links] == sorted(link.target for link in links)


def test_terms_for_which_there_are_too_many_tokens_are_left_out() -> None:
    line = "see a dog"
    count = len(build(TABLE, shown=True).tokenizer.encode_source([line])[0])
    translator = build(TABLE, shown=True, longest=count + 1)
    assert translator.translate([line], glossary={"dog": "Köter"}) == ["sehen einen Köter"]
    engine = translator.engine
    assert isinstance(engine, Dictionary)
    assert engine.sources == [line, "dog"]


def test_a_term_of_an_unspaced_script_is_shown_without_a_space() -> None:
    tokenizer = Tokenizer(SHOWN, SHOWN, "")
    spaced, unspaced = map(tokenizer.encode_term, ["Hund", "电脑"])
    pieces = SHOWN.processor.id_to_piece(spaced + unspaced)
    assert "".join(pieces) == "\u2581Hund电脑"
    assert spaced == SHOWN.encode(["Hund"])[0][:-1]
    assert Tokenizer(PLAIN, PLAIN, "").term_ids is None


@pytest.mark.parametrize("extra", [[], ["--shard", "1/1"], ["--column", "a"]])
def test_files_are_translated_with_a_glossary_and_a_memory(
    extra: list[str],
    finished_run: Path,
    program: Program,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    text, terms, memory = (tmp_path / name for name in ("in.txt", "terms.tsv", "memory.tsv"))
    out, report = tmp_path / "out.txt", tmp_path / "report.tsv"
    content = "one two three four\nzero one\n"
    if "--column" in extra:
        text = tmp_path / "in.jsonl"
        content = "".join(f'{{"a": "{line}"}}\n' for line in content.splitlines())
    text.write_text(content)
    terms.write_text("two\tBÜHNE\nzero\tx\n")
    memory.write_text("zero one\tA=B\n")
    common = [text, "--glossary", terms, "--memory", memory, "--report", report, "-o", out, *extra]
    status, _, err = program("translate", finished_run, *common)
    assert status == 0, err
    header, first, second = report.read_text().splitlines()
    assert header.startswith("\ufeffline\tstatus\t")
    assert "terms: two → BÜHNE: " in first
    assert second == "2\tmemory\t\tzero one\tA=B\t\t"
    assert ("BÜHNE" in out.read_text()) is ("missed" not in first)
    assert {f"{terms}: terms found (1)", f"{memory}: texts found (1)"} < {*caplog.messages}
    memory.write_text("nine\tC\n")
    status, _, err = program("translate", finished_run, *common)
    if "--shard" in extra:
        assert (status, "was begun with `memory`" in err) == (2, True)
        return
    assert f"{memory}: texts found (0)" in caplog.messages
    if not extra:
        _, answer, _ = program("translate", finished_run, text, "--json", "--glossary", terms)
        [use], [_] = [json.loads(line)["terms"] for line in answer.splitlines()]
        assert (use["source"], use["target"]) == ("two", "BÜHNE")
    before = out.read_bytes()
    terms.write_text("two\n")
    status, _, err = program("translate", finished_run, *common)
    assert (status, err.startswith(f"error: {terms}: line 1 ")) == (2, True)
    assert out.read_bytes() == before


def test_texts_of_a_memory_are_not_searched(tmp_path: Path) -> None:
    translator, memory = build(TABLE), tmp_path / "memory.tsv"
    engine = translator.engine
    assert isinstance(engine, Dictionary)
    memory.write_text("the dog\tA\n")
    translator.use_memory(memory)
    glossary = as_glossary({"dog": "Köter"})
    lines = ["the dog", " the\u00a0 dog ", "The dog", "see a dog", TaggedText("the dog")]
    searched = [False, False, True, True, True]
    for line, is_searched in zip(lines, searched, strict=True):
        engine.sources.clear()
        [translation] = translator.stream([line], n_best=2, glossary=glossary)
        assert (translation.status != "memory", bool(engine.sources)) == (is_searched,) * 2
    translations = [*translator.stream(lines, look_ahead=2)]
    assert [line.source for line in translations] == lines
    assert [line.line_number for line in translations] == [1, 2, 3, 4, 5]
    assert [line.text for line in translations][:2] == ["A", " A "]
    assert [bool(line.links) for line in translations] == [False] * 4 + [True]
    [forced] = translator.stream(["the dog"], prefixes=["der"])
    assert forced.status != "memory"


def test_share_of_the_terms_that_are_used_is_scored(
    finished_run: Path, program: Program, tmp_path: Path
) -> None:
    terms, text = tmp_path / "terms.tsv", tmp_path / "text"
    terms.write_text("two\tzwei\nnine\tneun\nfive\tfünf\n")
    text.write_text("zwei\n")
    given = ["evaluate", text, "--references", text, "--target-language", "de"]
    status, _, err = program(*given, "--glossary", terms)
    assert (status, "--glossary" in err) == (2, True)
    run = shutil.copytree(finished_run, tmp_path / "run")
    status, out, err = program("evaluate", run, "--glossary", terms)
    assert status == 0, err
    last = r"terms: \d of \d are in the translations, \d of them placed"
    assert re.fullmatch(last, out.splitlines()[-1])
    (written,) = (run / "evaluations").glob("test.glossary=*.json")  # beside those without it
    record = json.loads(written.read_text())
    assert "glossary" in [item["role"] for item in record["inputs"]]
    assert set(record["terms"]) == {"used", "placed", "missed"}
