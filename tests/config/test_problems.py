"""Error messages for invalid configurations."""

import random
import string
from collections.abc import Callable

import pytest

from mt.config import Config
from mt.config.problems import ANY_NAME, all_places, fields, format_name
from tests.factories import RECIPE

Refuse = Callable[..., str]
TYPOS = 60
PLACES = list(all_places(Config))


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("model: {label_smoothing: 0.1}", "unknown; did you mean `training.label_smoothing`?"),
        ("training: {beam: 2}", "FILE:8: `training`: given twice, first on line 6"),
        ("tokenizer: {from_: x}", "FILE:8: `tokenizer.from_`: unknown; did you mean `tokenizer.fr"),
        ("dta: 1", "FILE:8: `dta`: unknown; did you mean `data`?"),
        ("model: {xyzzy: 1}", "FILE:8: `model.xyzzy`: unknown"),
        ("decoding: {Top-K: 1}", "unknown; did you mean `decoding.top_k`?"),
        ("model: {heads: '8'}", "expected a whole number, got the text `8` (remove the quotes)"),
        ("model: {heads: 4.0}", "expected a whole number, got the number 4.0"),
        ("model: {heads: }", "expected a whole number, got `null`"),
        ("model: {dropout: '0.1'}", "expected a number, got the text `0.1`"),
        ("model: {dropout: .nan}", "expected a finite number, got the number nan"),
        ("model: {bias: 1}", "`model.bias`: expected `true` or `false`, got the number 1"),
        ("model: {dropout: 1}", "1 is out of range: must be less than 1.0"),
        ("decoding: {top_p: 0}", "0 is out of range: must be more than 0.0"),
        ("decoding: {top_p: 2}", "2 is out of range: must be at most 1.0"),
        ("model: 3", "`model`: expected a section of keys, got the number 3"),
        ("tokenizer: {from: 3}", "`tokenizer.from`: expected a path, got the number 3"),
        ("tokenizer: {tags: {}}", "`tokenizer.tags`: expected a list, got a section of keys"),
        ("evaluation: {expected: 3}", "expected a section of names, got the number 3"),
        (
            "decoding: {search: beem}",
            "not one of `greedy`, `beam`, `sample`, `auto`; did you mean `beam`?",
        ),
        ("model: {heads: 7}", "FILE:8: `model.d_model` 512 is not a multiple of `model.heads` 7"),
        ("seed: !x 1", "FILE:8: `seed`: `1` does not fit the tag `!x`"),
        ("seed: !!int x", "FILE:8: `seed`: `x` does not fit the tag `tag:yaml"),
        ("? [a]\n: 1", "FILE:8: a key must be a single word"),
        ("model: &a\n  heads: *a", "FILE: not valid YAML: nested too deeply, or an alias inside"),
    ],
)
def test_invalid_value_is_one_line(added: str, message: str, refuse: Refuse) -> None:
    text = refuse(f"{RECIPE}{added}\n")
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{format: tvs, path: a}", "FILE:4: `data.train.format`: `tvs` is not one of `text`, "),
        ("{format: tvs, path: a}", "did you mean `tsv`?"),
        ("{format: 3}", "`data.train.format`: the number 3 is not one of `text`"),
        ("{format: tsv, path: 5}", "`data.train.path`: expected text, got the number 5"),
        ("{format: tsv}", "`data.train.path`: required, but missing"),
        ("{path: a}", "unknown with `format: text`; it belongs to `format: tsv` or `f"),
        ("{sorce: a, target: b}", "`data.train.sorce`: unknown; did you mean `data.train.source`?"),
        ("c/train", "`data.train`: expected keys such as `corpus`, got `c/train`"),
        ("", "`data.train`: expected keys such as `corpus`, got `null`"),
        ("{}", "`data.train`: needs `corpus`, `sacrebleu`, or both `source` and `target`"),
        ("{source: a}", "`data.train`: `target` is missing: `source` and `target` go together"),
        ("{corpus: train}", "`train` does not have the right form: `name/split`, found as $MT"),
    ],
)
def test_invalid_source_is_one_line(source: str, message: str, refuse: Refuse) -> None:
    text = refuse(RECIPE.replace("{corpus: c/train}", source))
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.nrom=x", "--set model.nrom: unknown; did you mean `model.norm`?"),
        ("model.heads='2'", "--set model.heads: expected a whole number, got the text `2`"),
        ("model.heads=7", "--set model.heads: `model.d_model` 512 is not a multiple of `model.h"),
        ("modle.heads=7", "--set modle.heads: `modle`: unknown; did you mean `model`?"),
        ("training.seed=1", "--set training.seed: unknown; did you mean `seed`?"),
        ("seed.x=1", "--set seed.x: unknown; `seed` is a single value"),
        ("model.heads.x=1", "--set model.heads.x: `model.heads`: expected a whole number"),
        ("data.tests.a.sorce=x", "--set data.tests.a.sorce: unknown; did you mean `data.tests.a.s"),
        ("data.tests.a.source=x", "--set data.tests.a.source: `data.tests.a`: `target` is missi"),
        ("data.tests.a b.corpus=c/t", "`data.tests.a b`: a name has only letters, digits, `_`"),
        ("data.tests.tsv.text=1", "--set data.tests.tsv.text: unknown"),
        ("data.train=x", "--set data.train: expected keys such as `corpus`, got `x`"),
        ("data.source_language=jp", "`jp` is a country; did you mean `ja`?"),
        ("data.target_language=German", "`German` does not have the right form: Language code"),
        ("seed", "--set seed: write it as `KEY=VALUE`"),
        ("model..heads=1", "--set model..heads=1: write it as `KEY=VALUE`"),
        ("model.heads=[1", "--set model.heads: `[1` is not valid YAML: "),
        ("seed=!x 1", "--set seed: `!x 1` is not valid YAML: `1` does not fit the "),
        ("tokenizer.from=\udcff", "--set tokenizer.from: the value is not valid UTF-8"),
    ],
)
def test_invalid_override_is_one_line(override: str, message: str, refuse: Refuse) -> None:
    text = refuse(RECIPE + "seed: 3\n", override)
    assert message in text
    assert "\n" not in text


def test_all_problems_are_reported_in_reading_order(refuse: Refuse) -> None:
    added = "model:\n  nrom: layernorm\n  heads: '8'\n  heads: 2\ndecoding: {beam: 0}\n"
    assert refuse(RECIPE + added, "seed=-1").splitlines() == [
        "FILE: 5 problems",
        "FILE:9: `model.nrom`: unknown; did you mean `model.norm`?",
        "FILE:10: `model.heads`: expected a whole number, got the text `8` (remove the quotes)",
        "FILE:11: `model.heads`: given twice, first on line 10",
        "FILE:12: `decoding.beam`: 0 is out of range: must be at least 1",
        "--set seed: -1 is out of range: must be at least 0",
    ]


def test_missing_keys_are_named(refuse: Refuse) -> None:
    assert refuse("seed: 1\ndata: {source_language: en}").splitlines() == [
        "FILE: 3 problems",
        "FILE:2: `data.target_language`: required, but missing",
        "FILE:2: `data.train`: required, but missing",
        "FILE:2: `data.valid`: required, but missing; `valid: {held_out: 1000}` takes 1000 pairs "
        "of the training corpus",
    ]


def test_misspelt_required_key_is_not_also_missing(refuse: Refuse) -> None:
    message = "FILE:4: `data.trian`: unknown; did you mean `data.train`?"
    assert refuse(RECIPE.replace("train:", "trian:")) == message


def test_nearly_all_typos_get_the_right_suggestion(refuse: Refuse) -> None:
    generator = random.Random(20240611)
    text = f"{RECIPE}evaluation: {{expected: {{flickr: {{low: 30}}}}}}\n".replace(
        "training:", "  tests: {flickr: {corpus: c/flickr}}\ntraining:"
    )
    right: list[bool] = []
    while len(right) < TYPOS:
        place = generator.choice(PLACES)
        word = misspelt(place.keys[-1], generator)
        if not word or place.section is None or word in fields(place.section):
            continue
        key = ".".join(place.keys).replace(ANY_NAME, "flickr")
        section = key.rpartition(".")[0]
        wrong = f"{section}.{word}".lstrip(".")
        overrides = [f"{wrong}=1"]
        if kind := format_name(place.section):
            overrides.insert(0, f"{section}.format={kind}")
        message = f"--set {wrong}: unknown; did you mean `{key}`?"
        right.append(message in refuse(text, *overrides).splitlines())
    assert sum(right) >= 0.95 * TYPOS


def misspelt(word: str, generator: random.Random) -> str:
    """Return the word with a letter dropped, added, replaced, or swapped with the next."""
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
