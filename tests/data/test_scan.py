"""One reading of the training corpora, compared with separate readings."""

import gzip
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mt.config import Config
from mt.data import corpus_files
from mt.data.corpus_files import read_chunks
from mt.data.pairs import SentencePair
from mt.data.splits import open_training_corpora, scan_corpora
from mt.data.tokenizer import JOINT, SOURCE, TARGET
from mt.data.tokenizer_training import TokenizerText
from mt.errors import DataError
from mt.training.trainer import train
from tests.factories import DIGITS, config

SIZES = {"text": 9000, "table": 40}


def sides(name: str) -> tuple[list[str], list[str]]:
    numbers = range(SIZES[name])
    return [f"<b>{name} {n}" if n % 7 == 0 else f"{name} {n}" for n in numbers], [
        f"{DIGITS[n % 10]} {n // 2}" for n in numbers
    ]


@pytest.fixture
def mixture(tmp_path: Path) -> Config:
    """Return the config of a compressed text and a table; some pairs are cleaned away."""
    source, target = sides("text")
    paths = [tmp_path / "text.en.gz", tmp_path / "text.de"]
    paths[0].write_bytes(gzip.compress("".join(f"{line}\n" for line in source).encode()))
    paths[1].write_text("".join(f"{line}\n" for line in target))
    table = tmp_path / "table.tsv"
    table.write_text("".join(f"{a}\t{b}\n" for a, b in zip(*sides("table"), strict=True)))
    valid = tmp_path / "valid.tsv"
    valid.write_text("one\teins\ntwo\tzwei\n")
    corpora: dict[str, Any] = {
        "text": {"source": str(paths[0]), "target": str(paths[1])},
        "table": {"format": "tsv", "path": str(table)},
    }
    return config(
        data={
            "train": {"corpora": corpora},
            "valid": {"format": "tsv", "path": str(valid)},
            "tests": {},
            "cleaning": {"broken_text": ["markup"], "duplicates": "target"},
        }
    )


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the number of readings of each file, counted from now on."""
    counts = Counter[str]()

    def read_and_count(path: Path) -> Iterator[bytes]:
        counts[path.name] += 1
        return read_chunks(path)

    monkeypatch.setattr(corpus_files, "read_chunks", read_and_count)
    return counts


def test_scan_finds_in_one_reading_what_separate_readings_find(
    mixture: Config, readings: Counter[str]
) -> None:
    corpora = open_training_corpora(mixture.data)
    watched: list[SentencePair] = []

    def watch(pairs: Iterator[SentencePair]) -> Iterator[SentencePair]:
        for pair in pairs:
            watched.append(pair)
            yield pair

    scan = scan_corpora(corpora, watchers={"train.corpora.text": watch})
    assert readings == {"text.en.gz": 1, "text.de": 1, "table.tsv": 1}
    assert scan.checksums == {corpus.key: corpus.source.checksums() for corpus in corpora}
    text = "".join(f"{line}\n" for line in sides("text")[1])
    checksum = scan.checksums["train.corpora.text"].target
    assert checksum == hashlib.sha256(text.encode()).hexdigest()
    pairs = [pair for name in SIZES for pair in map(SentencePair, *sides(name))]
    assert watched == pairs[: SIZES["text"]]
    assert scan.pairs == 9040
    assert scan.characters == (
        sum(len(pair.source) for pair in pairs),
        sum(len(pair.target) for pair in pairs),
    )
    assert scan.sample == tuple(pairs[::2])


@pytest.mark.parametrize(
    ("index", "fault", "named"),
    [(4500, b"\xff", "text.de: line 4501 "), (9000, b"a\nb\n", "text.de has 9002:")],
)
def test_a_fault_ends_the_scan(
    index: int, fault: bytes, named: str, mixture: Config, tmp_path: Path
) -> None:
    path = tmp_path / "text.de"
    lines = path.read_bytes().split(b"\n")
    lines[index] = fault
    path.write_bytes(b"\n".join(lines))
    text = TokenizerText.for_run(mixture.tokenizer, mixture.data, origin=None)
    with pytest.raises(DataError, match=named):
        scan_corpora(open_training_corpora(mixture.data), text=text)


@pytest.mark.parametrize("size", [1, 4095, 8191, 8192, 16_384, 40_001])
def test_sample_is_evenly_spread(size: int, tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{n}\t{n}\n" for n in range(size)))
    data = config(data={"train": {"format": "tsv", "path": str(path)}}).data
    sample = [int(pair.source) for pair in scan_corpora(open_training_corpora(data)).sample]
    step = sample[1] - sample[0] if len(sample) > 1 else 1
    assert sample == list(range(0, size, step))
    assert len(sample) == size or 4096 <= len(sample) <= 8192


def cleaned(data_config: Config) -> list[SentencePair]:
    corpora = open_training_corpora(data_config.data)
    return [pair for corpus in corpora for pair in corpus.cleaned()]


def test_text_of_the_tokenizer_is_all_cleaned_text(mixture: Config) -> None:
    text = TokenizerText.for_run(mixture.tokenizer, mixture.data, origin=None)
    assert text is not None
    scan_corpora(open_training_corpora(mixture.data), text=text)
    pairs = cleaned(mixture)
    assert 0 < len(pairs) < 9000
    expected = {
        JOINT: [line for pair in pairs for line in (pair.source, pair.target)],
        SOURCE: [pair.source for pair in pairs],
        TARGET: [pair.target for pair in pairs],
    }
    assert dict(text.take(expected)) == expected
    text.add([SentencePair(f"{n:05}", f"{n:015}") for n in range(1000)], ("en", "de"))
    (taken,) = dict(text.take([JOINT], 5000)).values()
    assert [int(line) for line in taken] == [n for n in range(0, 1000, 4) for _ in "xy"]


@pytest.mark.parametrize(
    ("weights", "temperature", "passes"),
    [
        ((1, 50), 1.0, (1, 50)),
        ((0.2, 2), 1.0, (0.2, 2)),
        ((0.1, 0.4), 1.0, (0.25, 1)),  # an epoch without a whole corpus
        ((3, 3), 1.0, (1, 1)),
        ((1, 1), 1000.0, (0.5, 113)),  # as many lines of 40 pairs as of 9,000
    ],
)
def test_text_of_the_tokenizer_has_lines_by_the_weights_of_the_corpora(
    weights: tuple[float, float], temperature: float, passes: tuple[float, float], mixture: Config
) -> None:
    data = mixture.data.model_dump(exclude_unset=True)
    data["train"]["temperature"], data["cleaning"] = temperature, {}
    for corpus, weight in zip(data["train"]["corpora"].values(), weights, strict=True):
        corpus["weight"] = weight
    weighted = config(data=data)

    def take() -> dict[str, list[str]]:
        text = TokenizerText.for_run(weighted.tokenizer, weighted.data, origin=None)
        assert text is not None
        scan_corpora(open_training_corpora(weighted.data), text=text)
        return dict(text.take([JOINT, SOURCE, TARGET]))

    taken = take()
    assert taken == take()
    counts = Counter(taken[SOURCE])
    for corpus, expected in zip(SIZES, passes, strict=True):
        lines = [counts.pop(line, 0) for line in sides(corpus)[0]]
        assert sum(lines) == pytest.approx(expected * SIZES[corpus], rel=0.01)
        assert max(lines) - min(lines) <= 1
    assert not counts
    assert len(taken[TARGET]) == len(taken[SOURCE]) == pytest.approx(len(taken[JOINT]) / 2, abs=1)


@pytest.mark.parametrize("held_out", [False, True])
def test_new_run_reads_a_corpus_twice(
    held_out: bool, mixture: Config, readings: Counter[str], tmp_path: Path
) -> None:
    data = mixture.data.model_dump(exclude_unset=True)
    if held_out:
        data["valid"] = {"held_out": 20}
    train(config(data=data, training={"max_updates": 1, "device": "cpu"}), tmp_path / "run")
    assert {readings[name] for name in ("text.en.gz", "text.de", "table.tsv")} == {2}
