"""Every key is found, documented, and suggested when it is misspelt."""

import random
import string
from pathlib import Path

import pytest

from mt.config import Config
from mt.config.loading import load_config
from mt.config.problems import ANY_NAME, Place, all_places, fields, format_name, locate, suggest
from mt.errors import ConfigError

BASE = """\
data:
  source_language: en
  target_language: de
  train: {corpus: c/train}
  valid: {corpus: c/valid}
  tests:
    flickr: {corpus: c/flickr}
training:
  max_updates: 100
evaluation:
  expected:
    flickr: {low: 30}
"""
TYPOS = 200


def user_key(place: Place) -> str:
    return place.dotted.replace(ANY_NAME, "flickr")


def misspelt(word: str, generator: random.Random) -> str:
    """Return the word with a letter dropped, added, exchanged or swapped with the next one."""
    at = generator.randrange(len(word))
    letter = generator.choice(string.ascii_lowercase)
    return generator.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + letter + word[at:],
            word[:at] + letter + word[at + 1 :],
            word[:at] + word[at + 1 : at + 2] + word[at : at + 1] + word[at + 2 :],
        ]
    )


def test_the_keys_of_every_section_are_listed() -> None:
    keys = {place.dotted for place in all_places(Config)}
    assert {
        "seed",
        "data",
        "data.train.sha256_source",
        "data.train.revision",
        "data.tests.NAME.source_column",
        "tokenizer.from",
        "evaluation.expected.NAME.low",
        "evaluation.published.NAME.protocol.case",
        "decoding.length_penalty",
    } <= keys
    assert "tokenizer.from_" not in keys


@pytest.mark.parametrize(
    ("key", "description"),
    sorted(
        {(place.dotted, place.field and place.field.description) for place in all_places(Config)}
    ),
)
def test_every_key_is_documented_in_a_sentence(key: str, description: str | None) -> None:
    assert description, f"{key} has no docstring"
    assert len(description) > 5, key
    assert description.endswith("."), f"{key}: {description}"


def test_200_typos_are_all_rejected_and_nearly_all_get_the_right_suggestion(tmp_path: Path) -> None:
    generator = random.Random(20240611)
    file = tmp_path / "recipe.yaml"
    file.write_text(BASE)
    places = list(all_places(Config))
    right: list[bool] = []
    while len(right) < TYPOS:
        place = generator.choice(places)
        word = misspelt(place.keys[-1], generator)
        if not word or place.section is None or word in fields(place.section):
            continue
        around = user_key(place).split(".")[:-1]
        overrides = [".".join([*around, word]) + "=1"]
        if kind := format_name(place.section):
            overrides.insert(0, ".".join([*around, "format"]) + f"={kind}")
        with pytest.raises(ConfigError) as error:
            load_config(file, overrides=overrides)
        told = f"--set {'.'.join([*around, word])}: unknown; did you mean `{user_key(place)}`?"
        right.append(told in str(error.value).splitlines())
    assert sum(right) >= 0.95 * TYPOS


@pytest.mark.parametrize(
    ("location", "keys"),
    [
        (("model", "norm"), "model.norm"),
        (("data", "train", "text", "sorce"), "data.train.sorce"),
        (("data", "tests", "text", "text", "text"), "data.tests.text.text"),
        (("data", "tests", "tsv", "text", "source"), "data.tests.tsv.source"),
        (("data", "tests", "a b", "[key]"), "data.tests.a b"),
        (("evaluation", "expected", "flickr", "low"), "evaluation.expected.flickr.low"),
        (("evaluation", "published", 0, "split"), "evaluation.published.0.split"),
        ((), ""),
    ],
)
def test_the_tags_of_unions_are_no_part_of_a_key(
    location: tuple[int | str, ...], keys: str
) -> None:
    assert locate(Config, location).dotted == keys


@pytest.mark.parametrize(
    ("location", "near"),
    [
        (("model", "label_smoothing"), "training.label_smoothing"),
        (("model", "nrom"), "model.norm"),
        (("training", "beam"), "decoding.beam"),
        (("training", "Max-Updates"), "training.max_updates"),
        (("dta",), "data"),
        (("training", "seed"), "seed"),
        (("training", "xyzzy"), None),
    ],
)
def test_a_key_is_looked_for_in_its_own_section_and_then_in_all(
    location: tuple[int | str, ...], near: str | None
) -> None:
    assert suggest(Config, locate(Config, location)) == near
