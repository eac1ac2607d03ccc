import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt.config import Config
from mt.data.tokenizer import Tokenizer, Vocabulary
from mt.doctor.tokenizer import (
    SideReport,
    TokenizerReport,
    check_tokenizer,
    configured_tokenizer,
    tokenizer_as_text,
)
from tests.factories import Program, config

FULL_WIDTH = "，：；！？（）"
CHINESE = [
    "你好，世界！今天的天气很好。",
    "他问：你是谁？我不知道。",
    "她说（小声）：请安静；我在看书。",
    "猫在桌子上，狗在桌子下，鸟在树上。",
    "今天是星期一；明天是星期二。",
    "请问（老师）图书馆在哪里？",
]
ENGLISH = [
    "hello, world! it is fine today.",
    "he asked: who are you? I do not know.",
    "she said (softly): be quiet; I read.",
    "the cat is on the table, the dog below.",
    "today is Monday; tomorrow is Tuesday.",
    "excuse me (teacher), where is the library?",
]
SMALL: dict[str, Any] = {"vocabulary_size": 400, "character_coverage": 1.0}


@pytest.fixture
def chinese(tmp_path: Path) -> Callable[..., Config]:
    """Return a function that builds the config of a Chinese corpus."""
    return lambda **keys: _config(tmp_path, "zh", ENGLISH * 5, CHINESE * 5, **{**SMALL, **keys})


def _config(
    folder: Path, language: str, source: list[str], target: list[str], **tokenizer: Any
) -> Config:
    """Write a corpus and return a config with it as every split."""
    for code, lines in (("en", source), (language, target)):
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"a.{code}").write_text(text, encoding="utf-8")
    corpus = {"source": str(folder / "a.en"), "target": str(folder / f"a.{language}")}
    splits = {"train": corpus, "valid": corpus, "tests": {"test": corpus}}
    return config(
        data={"target_language": language, **splits},
        tokenizer=tokenizer,
        model={"tie_embeddings": "decoder"},
    )


def _report_on(made: Config) -> tuple[TokenizerReport, Vocabulary]:
    """Return the report on the tokenizer of a config, and its source vocabulary."""
    with configured_tokenizer(made) as tokenizer:
        return check_tokenizer(made, tokenizer), tokenizer.source


def _never_written(side: SideReport) -> set[str]:
    return {loss.character for loss in side.losses if loss.never_written}


def test_the_default_normalization_loses_nothing_and_tokens_are_counted(
    chinese: Callable[..., Config],
) -> None:
    report, vocabulary = _report_on(chinese())
    assert [ceiling.split for ceiling in report.ceilings] == ["valid", "test"]
    for ceiling in report.ceilings:
        assert (ceiling.bleu, ceiling.changed_lines, ceiling.lines) == (100.0, 0, 30)
        assert "|tok:zh|" in ceiling.signature
    for side in (report.source, report.target):
        assert (side.losses, side.changed_lines, side.unknown_tokens) == ((), 0, 0)
    assert (report.pairs, report.sampled_pairs) == (30, 30)
    encode = vocabulary.processor.encode
    tokens = [sum(len(encode(line)) for line in side) for side in (ENGLISH, CHINESE)]
    assert (report.source.tokens, report.target.tokens) == (5 * tokens[0], 5 * tokens[1])
    words, characters = len(" ".join(ENGLISH).split()), len("".join(ENGLISH))
    _, _, source, target = tokenizer_as_text(report).splitlines()[1:5]
    shares = [f"{tokens[0] / words:.2f}", f"{tokens[0] / characters:.3f}"]
    assert source.split()[:4] == ["source", "en", *shares]
    assert target.split()[:3] == ["target", "zh", "-"]
    used = {token for line in ENGLISH + CHINESE for token in encode(line, out_type=str)}
    unused = set(vocabulary.texts().values()) - used
    (joint,) = report.vocabularies
    assert (joint.name, {*joint.unused}) == ("joint", unused)
    assert unused


def test_nmt_nfkc_never_writes_full_width_punctuation(chinese: Callable[..., Config]) -> None:
    report, _ = _report_on(chinese(normalization="nmt_nfkc"))
    assert _never_written(report.target) == set(FULL_WIDTH)
    assert report.source.losses == ()
    text = "".join(CHINESE * 5)
    lost = [(loss.character, loss.count, loss.becomes) for loss in report.target.losses]
    pairs = zip(FULL_WIDTH, ",:;!?()", strict=True)
    assert sorted(lost) == sorted((c, text.count(c), becomes) for c, becomes in pairs)
    assert lost == sorted(lost, key=lambda loss: -loss[1])
    assert report.target.changed_lines == 30
    for ceiling in report.ceilings:
        assert 10 < ceiling.bleu < 95
        assert ceiling.changed_lines == 30
    shown = tokenizer_as_text(report)
    (line,) = [line for line in shown.splitlines() if "can write" in line]
    assert line.startswith("7 characters that no model with this tokenizer can write: ")
    assert set(line.partition(": ")[2].split()) == set(FULL_WIDTH)


def test_a_character_lost_in_some_places_can_still_be_written(tmp_path: Path) -> None:
    """Decomposed é is composed; the e of other words remains, the accent does not."""
    sides = ["one cafe", "two tea"] * 9, ["un cafe\u0301", "deux thes"] * 9
    report, _ = _report_on(_config(tmp_path, "fr", *sides, normalization="nmt_nfkc", **SMALL))
    lost = {loss.character: loss for loss in report.target.losses}
    assert {c: (loss.count, loss.becomes) for c, loss in lost.items()} == {
        "e": (9, "e"),
        "\u0301": (9, "\u0301"),
    }
    assert _never_written(report.target) == {"\u0301"}
    shown = tokenizer_as_text(report)
    assert "U+0065      9  itself where it stands alone" in shown
    assert "1 character that no model with this tokenizer can write: U+0301" in shown


def test_without_byte_fallback_rare_characters_are_unknown(tmp_path: Path) -> None:
    lines = ["aa bb cc dd ee"] * 1200
    sides = lines, ["ß bb", *lines[1:]]
    rare: dict[str, Any] = {"vocabulary_size": 300, "character_coverage": 0.999}
    report, _ = _report_on(_config(tmp_path, "de", *sides, byte_fallback="off", **rare))
    assert (report.source.unknown_tokens, report.target.unknown_tokens) == (0, 1)
    assert _never_written(report.target) == {"ß"}
    assert report.target.losses[0].becomes == "\N{REPLACEMENT CHARACTER}"
    spelled, _ = _report_on(_config(tmp_path, "de", *sides, byte_fallback="on", **rare))
    assert (spelled.target.unknown_tokens, spelled.target.byte_tokens) == (0, 2)
    assert spelled.target.losses == ()


def test_the_advised_size_fits_the_frequent_tokens(tmp_path: Path) -> None:
    """Twenty words occur 150 times and forty words once."""
    common = [f"{chr(97 + n)}{chr(98 + n)}{chr(99 + n)}" for n in range(20)]
    rare = [f"{chr(97 + n % 20)}x{chr(97 + n // 2)}y" for n in range(40)]
    lines = [*(" ".join(common) for _ in range(150)), *rare]
    sizes: dict[str, Any] = {"vocabulary_size": 480, "vocabulary": "separate"}
    report, vocabulary = _report_on(_config(tmp_path, "de", lines, lines, **sizes))
    texts, encode = vocabulary.texts().values(), vocabulary.processor.encode
    counts = Counter(token for line in lines for token in encode(line, out_type=str))
    source, target = report.vocabularies
    assert (source.name, target.name) == ("source", "target")
    frequent = sum(counts[text] >= 100 for text in texts)
    assert (source.rare, source.text_tokens) == (len(texts) - frequent, len(texts))
    others = source.size - len(texts)
    assert others == 4 + 256
    single = sum(len(text) == 1 for text in texts)
    assert source.advised_size is not None
    assert others + max(frequent / 0.95, single) <= source.advised_size < source.size
    assert f"`tokenizer.vocabulary_size: {source.advised_size}`" in tokenizer_as_text(report)


def test_counts_are_extrapolated_from_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt.doctor.tokenizer._MAX_PAIRS", 40)
    report, _ = _report_on(_config(tmp_path, "de", ["b"] * 80, ["b"] * 80, vocabulary_size=300))
    assert (report.pairs, report.sampled_pairs, report.source.lines) == (80, 40, 40)
    (vocabulary,) = report.vocabularies
    assert vocabulary.text_tokens == 3  # `▁b` and its characters
    assert (vocabulary.rare, vocabulary.advised_size) == (2, None)
    assert report.ceilings[0].bleu == 100.0  # sacreBLEU gives so short texts 0
    assert tokenizer_as_text(report).startswith("training text: 40 of 80 pairs\n")


def test_the_tokenizer_of_a_config_is_that_of_its_training_and_leaves_no_files(
    tiny_recipe: Path,
    finished_run: Path,
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    report = tmp_path / "report.json"
    status, out, _ = program("data", "tokenizer", tiny_recipe, "--json", report)
    assert status == 0
    assert [*tmp_path.iterdir()] == [report]
    fingerprint = Tokenizer.load(finished_run / "tokenizer").fingerprint
    assert json.loads(report.read_text())["fingerprint"] == fingerprint
    of_run = program("data", "tokenizer", finished_run)
    assert of_run[:2] == (0, out)
