from pathlib import Path

import pytest

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
