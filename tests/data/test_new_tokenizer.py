"""Text from which an extended tokenizer learns its new tokens."""

import random
from pathlib import Path
from typing import Any

import pytest

from mt.config import Config
from mt.data.pairs import SentencePair
from mt.data.splits import open_training_corpora, scan_corpora
from mt.data.tokenizer import Tokenizer
from mt.data.tokenizer_training import TokenizerText, provide_tokenizer, train_tokenizer
from tests.factories import config

ALPHABETS = {"en": "abcdef", "de": "ghijkl", "fr": "mnopqr"}
UNKNOWN = "狗"


def text(language: str, seed: int) -> list[str]:
    """Return lines of twenty words; each language has its own letters."""
    draw = random.Random(f"{language} {seed}")
    words = ["".join(draw.choices(ALPHABETS[language], k=5)) for _ in range(20)]
    return [" ".join(draw.choices(words, k=6)) for _ in range(60)]


def corpus(folder: Path, source: str, target: str, seed: int, **keys: Any) -> dict[str, Any]:
    """Write a corpus and return its section of the config."""
    files = {}
    for side, language in {"source": source, "target": target}.items():
        files[side] = folder / f"{side}-{source}-{target}-{seed}"
        files[side].write_text("\n".join(text(language, seed)) + "\n")
    paths = {side: str(path) for side, path in files.items()}
    return {**paths, "source_language": source, "target_language": target, **keys}


def extended(
    folder: Path, corpora: dict[str, dict[str, Any]], *, vocabulary: str = "joint", **keys: Any
) -> tuple[Tokenizer, Tokenizer]:
    """Return a tokenizer of en and de with the tag <2de>, and its extension by corpora."""
    shape = {"vocabulary_size": 310, "vocabulary": vocabulary, **keys}
    old_settings = config(tokenizer={**shape, "tags": ["<2de>"]}).tokenizer
    pairs = list(map(SentencePair, text("en", 1), text("de", 1)))
    old = train_tokenizer(lambda: iter(pairs), folder / "old", config=old_settings)
    data = {"train": {"format": "mixture", "corpora": corpora}}
    tags = list(dict.fromkeys(each["tag"] for each in corpora.values() if "tag" in each))
    new = config(
        data=data,
        tokenizer={**shape, "tags": tags, "from": str(folder / "old"), "added_tokens": 60},
        model={"tie_embeddings": "all" if vocabulary == "joint" else "decoder"},
    )
    return old, provided(new, folder / "new")


def provided(new: Config, folder: Path) -> Tokenizer:
    origin = new.tokenizer.from_
    text = TokenizerText.for_run(new.tokenizer, new.data, origin=origin)
    scan_corpora(open_training_corpora(new.data), text=text)
    return provide_tokenizer(new.tokenizer, folder, origin=new.tokenizer_origin, text=text)


def lengths(lines: list[str], *tokenizers: Tokenizer) -> list[int]:
    """Return the number of tokens of lines by each tokenizer."""
    return [sum(map(len, each.encode_source(lines))) for each in tokenizers]


def test_replayed_text_keeps_its_segmentation_and_gives_unknown_characters(tmp_path: Path) -> None:
    corpora = {
        "new": corpus(tmp_path, "en", "fr", 2, tag="<2fr>"),
        "old": corpus(tmp_path, "en", "de", 2, tag="<2de>"),
    }
    file = Path(corpora["new"]["source"])
    file.write_text(file.read_text().replace(" ", f" {UNKNOWN} ", 1), encoding="utf-8")
    old, new = extended(tmp_path, corpora)
    assert new.source_size > old.source_size + 20
    assert UNKNOWN not in old.source.texts().values()
    assert UNKNOWN in new.source.texts().values()
    for seed in (1, 2):
        for language in ("en", "de"):
            lines = text(language, seed)
            assert new.encode_source(lines) == old.encode_source(lines)
    before, after = lengths(text("fr", 2), old, new)
    assert after < 0.5 * before


@pytest.mark.parametrize("tag", [None, "<bt>"])
def test_tokens_come_from_all_text_without_a_new_language(tag: str | None, tmp_path: Path) -> None:
    corpora = {
        "domain": corpus(tmp_path, "en", "de", 2, **({"tag": tag} if tag else {})),
        "old": corpus(tmp_path, "en", "de", 1, tag="<2de>"),
    }
    old, new = extended(tmp_path, corpora)
    for language in ("en", "de"):
        before, after = lengths(text(language, 2), old, new)
        assert after < 0.7 * before


def test_vocabulary_of_a_side_without_new_text_gets_tags_alone(tmp_path: Path) -> None:
    corpora = {
        "new": corpus(tmp_path, "en", "fr", 2, tag="<2fr>"),
        "old": corpus(tmp_path, "en", "de", 2, tag="<2de>"),
    }
    old, new = extended(tmp_path, corpora, vocabulary="separate")
    assert new.source_size == old.source_size + 1
    assert new.target_size > old.target_size + 20
