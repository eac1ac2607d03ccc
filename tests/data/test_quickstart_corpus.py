import hashlib
import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mt.data.pairs import SentencePair
from mt.evaluation.scores import evaluate
from mt.recipes.reproduce import nearest_targets
from tests.factories import load_script

FOLDER = Path(__file__).resolve().parents[2] / "data" / "quickstart"
SPLITS = ("train", "valid", "test")
CHINESE_LINE = re.compile(r"[\u4e00-\u9fff，。？！、]+")
# 二 is correct in dates, weekdays, floors and numbers above ten.
TWO_AS_LABEL = re.compile(r"二(?=[月号楼十])|(?<=星期)二|(?<=十)二")


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load_script(FOLDER / "generate.py")


@pytest.fixture(scope="module")
def corpus(generator: ModuleType) -> dict[str, list[Any]]:
    made: dict[str, list[Any]] = generator.build()
    return made


@pytest.fixture(scope="module")
def files() -> dict[str, list[str]]:
    return {
        f"{split}.{language}": (FOLDER / f"{split}.{language}")
        .read_bytes()
        .decode()
        .removesuffix("\n")
        .split("\n")
        for split in SPLITS
        for language in ("en", "zh")
    }


@pytest.fixture(scope="module")
def english(files: dict[str, list[str]]) -> list[str]:
    return [line for split in SPLITS for line in files[f"{split}.en"]]


@pytest.fixture(scope="module")
def chinese(files: dict[str, list[str]]) -> list[str]:
    return [line for split in SPLITS for line in files[f"{split}.zh"]]


def offenders(pattern: str, sentences: list[str]) -> list[str]:
    return [sentence for sentence in sentences if re.search(pattern, sentence)]


@pytest.mark.slow
def test_generator_reproduces_the_files(
    generator: ModuleType, corpus: dict[str, list[Any]]
) -> None:
    for name, text in generator.contents(corpus).items():
        assert (FOLDER / name).read_bytes() == text.encode(), name


def test_check_names_a_file_that_differs(
    generator: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = {"train.en": "a\n", "train.zh": "b\n"}
    monkeypatch.setattr(generator, "HERE", tmp_path)
    monkeypatch.setattr(generator, "contents", lambda corpus: made)
    monkeypatch.setattr(generator, "build", dict)
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    (tmp_path / "train.zh").write_text("c\n")
    assert generator.main(["--check"]) == 1
    assert "train.zh" in capsys.readouterr().out


def test_sizes(files: dict[str, list[str]]) -> None:
    sizes = {name: len(lines) for name, lines in files.items()}
    assert sizes == {
        f"{split}.{language}": {"train": 24_000}.get(split, 500)
        for split in SPLITS
        for language in ("en", "zh")
    }
    assert sum((FOLDER / name).stat().st_size for name in files) < 3_500_000


def test_no_sentence_occurs_twice_or_leaks(english: list[str], chinese: list[str]) -> None:
    for sentences in (english, chinese):
        repeated = [text for text, times in Counter(sentences).items() if times > 1]
        assert not repeated


@pytest.mark.slow
def test_held_out_splits_use_only_well_known_items(corpus: dict[str, list[Any]]) -> None:
    items = Counter(part for pair in corpus["train"] for part in pair.parts)
    patterns = Counter(pair.pattern for pair in corpus["train"])
    for split in ("valid", "test"):
        assert not [part for pair in corpus[split] for part in pair.parts if items[part] < 15]
        assert not [pair.pattern for pair in corpus[split] if patterns[pair.pattern] < 50]


def test_every_test_word_is_in_train(files: dict[str, list[str]]) -> None:
    def words(lines: list[str]) -> set[str]:
        return {word for line in lines for word in re.findall(r"[\w'-]+", line.lower())}

    for split in ("valid", "test"):
        assert words(files[f"{split}.en"]) <= words(files["train.en"])
        assert set("".join(files[f"{split}.zh"])) <= set("".join(files["train.zh"]))


@pytest.mark.slow
def test_held_out_sentences_keep_their_distance(corpus: dict[str, list[Any]]) -> None:
    train: dict[str, list[set[str]]] = {}
    for pair in corpus["train"]:
        train.setdefault(pair.pattern, []).append(set(pair.parts))
    for pair in corpus["test"]:
        parts = set(pair.parts)
        closest = max(len(parts & other) for other in train[pair.pattern])
        assert closest <= len(parts) / 2, pair.english


def test_both_sides_are_well_formed(english: list[str], chinese: list[str]) -> None:
    line = re.compile(r"[A-Z][A-Za-z',. -]*[.?!]")
    assert not [text for text in english if not line.fullmatch(text.replace("Hello!", "Hello."))]
    assert not offenders(r"  | [.,?!]|\.\.", english)
    assert not [text for text in chinese if not CHINESE_LINE.fullmatch(text)]
    ends = {".": "。", "?": "？", "!": "！"}
    assert not [(a, b) for a, b in zip(english, chinese, strict=True) if ends[a[-1]] != b[-1]]


def test_two_before_a_measure_word(chinese: list[str]) -> None:
    assert not [line for line in chinese if "二" in TWO_AS_LABEL.sub("", line)]
    assert sum("两" in line for line in chinese) > 500


NUMBER = r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
SINGULAR = r"(?:ticket|book|knife|box|cup|pair|plate|bowl|apple|day|week|month|year|letter)"


@pytest.mark.parametrize(
    "mistake",
    [
        r"\b[Aa] (?!university\b|useful\b)[aeiou]",
        r"(?<!')\b[Aa]n (?![aeiouAEIOU]|hour\b|honest\b)",
        r"\b[Aa]n? \w+ ?(shoes|socks|gloves|jeans|boots)\b",
        rf"{NUMBER} {SINGULAR}\b",
        r"\b(an?|this|one) (tickets|books|knives|cups|apples|letters)\b",
        r"\b(red|blue|green|black|white|yellow) pairs? of",
        r"\b(He|She) (are|am|were|have|do|don't|want|like|think|plan)\b",
        r"\b(I|We|They|You) (is|has|does|doesn't|wants|likes|thinks|plans)\b",
        r"\bMy parents (is|was|has|does|doesn't|wants|likes)\b",
        r"\b(didn't|doesn't|don't|can't) \w+ed\b(?<!need)",
    ],
)
def test_english_has_no_mistake(mistake: str, english: list[str]) -> None:
    assert not offenders(mistake, english)


def test_readme_has_checksums_and_samples(files: dict[str, list[str]]) -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    sums = dict(re.findall(r"\| `([\w.]+)` \| `([0-9a-f]{64})` \|", page))
    assert sums == {
        name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in files
    }
    samples = re.findall(r"^\| ([A-Z].*?) \| (.*[。？！]) \|$", page, flags=re.MULTILINE)
    assert len(samples) >= 8
    assert set(samples) <= set(zip(files["test.en"], files["test.zh"], strict=True))


def test_nearest_training_sentences_score_low(files: dict[str, list[str]]) -> None:
    train = zip(files["train.en"], files["train.zh"], strict=True)
    copies = nearest_targets(
        (SentencePair(*pair) for pair in train), files["test.en"], source_language="en"
    )
    bleu = evaluate(copies, [files["test.zh"]], target_language="zh").bleu
    assert bleu.value < 40
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"**{bleu.value:.2f} BLEU**" in page
