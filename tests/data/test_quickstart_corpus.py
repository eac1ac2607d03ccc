from pathlib import Path

import pytest

from mt.data.pairs import SentencePair
from mt.evaluation.scores import evaluate
from mt.recipes.reproduce import nearest_targets
from tests.factories import load_script

FOLDER = Path(__file__).resolve().parents[2] / "data" / "quickstart"
SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def files() -> dict[str, list[str]]:
    return {
        f"{split}.{language}": (FOLDER / f"{split}.{language}").read_text("utf-8").splitlines()
        for split in SPLITS
        for language in ("en", "zh")
    }


@pytest.mark.slow
def test_generator_reproduces_the_files() -> None:
    generator = load_script(FOLDER / "generate.py")
    for name, text in generator.contents(generator.build()).items():
        assert (FOLDER / name).read_bytes() == text.encode(), name


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_sentence_occurs_twice_or_leaks(language: str, files: dict[str, list[str]]) -> None:
    sentences = [line for split in SPLITS for line in files[f"{split}.{language}"]]
    assert len({*sentences}) == len(sentences)


def test_nearest_training_sentences_score_low(files: dict[str, list[str]]) -> None:
    train = zip(files["train.en"], files["train.zh"], strict=True)
    copies = nearest_targets(
        (SentencePair(*pair) for pair in train), files["test.en"], source_language="en"
    )
    bleu = evaluate(copies, [files["test.zh"]], target_language="zh").bleu
    assert bleu.value < 40
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"**{bleu.value:.2f} BLEU**" in page
