"""A configuration from YAML: what is accepted, and every way in which it is refused."""

from pathlib import Path

import pytest

from mt.config import Config
from mt.config.data import HubSource, TextSource
from mt.config.loading import load_config, override_config, require_section
from mt.errors import ConfigError

DATA = """\
data:
  source_language: en
  target_language: de
  train: {corpus: c/train}
  valid: {corpus: c/valid}
"""
BASE = DATA + "training:\n  max_updates: 100\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "recipe.yaml"


def load(file: Path, text: str, *overrides: str) -> Config:
    file.write_text(text, encoding="utf-8")
    return load_config(file, overrides=overrides)


def message(file: Path, text: str, *overrides: str) -> str:
    """Return what a wrong config is told, with the file's name cut to FILE."""
    with pytest.raises(ConfigError) as error:
        load(file, text, *overrides)
    return str(error.value).replace(str(file), "FILE")


def test_yaml_1_2(file: Path) -> None:
    text = BASE.replace("target_language: de", "target_language: no")
    config = load(file, text + "  learning_rate: 1e-4\n  average: off\nseed: 0o17\n")
    assert config.data.target_language == "no"
    assert config.training.learning_rate == 1e-4
    assert config.training.average == "off"
    assert config.seed == 15


@pytest.mark.parametrize("written", ["1e-4", "1E-4", "0.0001", "1.0e-4", "100e-6", ".1e-3"])
def test_every_way_to_write_a_float(file: Path, written: str) -> None:
    assert load(file, f"{BASE}  learning_rate: {written}\n").training.learning_rate == 0.0001


def test_values_take_their_declared_types(file: Path) -> None:
    config = load(file, BASE + "  learning_rate: 2\ntokenizer: {from: runs/old}\n")
    assert config.training.learning_rate == 2.0
    assert isinstance(config.training.learning_rate, float)
    assert config.tokenizer.from_ == Path("runs/old")


def test_a_section_whose_keys_are_all_commented_out_is_empty(file: Path) -> None:
    assert load(file, BASE + "model:\n  # heads: 4\n").model == Config.model_fields["model"].default


def test_what_looks_like_a_date_or_a_number_is_text_in_a_key(file: Path) -> None:
    tests = "  tests: {2016: {corpus: c/t}, 2024-01-01: {corpus: c/u}}\n"
    assert list(load(file, DATA + tests + "training: {max_updates: 1}").data.tests) == [
        "2016",
        "2024-01-01",
    ]


def test_what_looks_like_a_date_is_text_in_a_value(file: Path) -> None:
    assert load(file, BASE + "tokenizer: {from: 2024-01-01}").tokenizer.from_ == Path("2024-01-01")


def test_a_byte_order_mark_and_carriage_returns_are_no_text(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode())
    train = load_config(file).data.train
    assert isinstance(train, TextSource)
    assert train.corpus == "c/train"


def test_an_alias_may_be_used_twice_and_an_anchor_given_anew(file: Path) -> None:
    text = BASE + "model: {heads: &n 4, encoder_layers: *n, d_ff: &n 64}\n"
    assert load(file, text).model.encoder_layers == 4


@pytest.mark.parametrize(
    ("added", "told"),
    [
        ("model: {label_smoothing: 0.1}", "unknown; did you mean `training.label_smoothing`?"),
        ("model: {label_smoothing: 0.1}", "FILE:8: `model.label_smoothing`: "),
        ("tokenizer: {from_: x}", "FILE:8: `tokenizer.from_`: unknown; did you mean `tokenizer.fr"),
        ("model: {heads: '8'}", "a whole number was expected, not the text `8` (leave out the qu"),
        ("model: {heads: true}", "a whole number was expected, not `true`"),
        ("model: {heads: 4.0}", "a whole number was expected, not the number 4.0"),
        ("model: {heads: }", "a whole number was expected, not `null`"),
        ("model: {dropout: true}", "a number was expected, not `true`"),
        ("model: {dropout: '0.1'}", "a number was expected, not the text `0.1`"),
        ("model: {dropout: .nan}", "a finite number was expected"),
        ("model: {dropout: 1}", "1 is out of range: must be less than 1.0"),
        ("model: {dropout: -0.1}", "-0.1 is out of range: must be at least 0.0"),
        ("model: {relative_buckets: 7}", "`model.relative_buckets`: 7 is no multiple of 2"),
        ("model: 3", "`model`: a section of keys was expected, not the number 3"),
        ("model: [1]", "`model`: a section of keys was expected, not a list"),
        ("tokenizer: {from: 3}", "`tokenizer.from`: a path was expected, not the number 3"),
        ("decoding: {search: beem}", "none of `greedy`, `beam`, `sample`; did you mean `beam`?"),
        ("decoding: {search: null}", "`null` is none of `greedy`, `beam`"),
        ("model: {heads: 7}", "FILE:8: `model.d_model` 512 is no multiple of `model.heads` 7"),
        ("seed: 1\nseed: 2", "FILE:9: `seed`: given twice, first on line 8"),
        ("seed: !x 1", "FILE:8: `seed`: the tag `!x` is not known here"),
        ("seed: !!int x", "FILE:8: `seed`: `x` is no int"),
        ("? [a]\n: 1", "FILE:8: a key is one word"),
        ("model: &a\n  heads: *a", "FILE:9: `model.heads`: contains itself"),
        ('tokenizer: {from: "\\ud800"}', "FILE:8: `tokenizer.from`: holds half a character"),
        ("evaluation: {expected: 3}", "a section of names was expected, not the number 3"),
    ],
)
def test_one_problem_is_one_line(file: Path, added: str, told: str) -> None:
    text = message(file, BASE + added + "\n")
    assert told in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{format: tvs, path: a}", "FILE:4: `data.train.format`: `tvs` is none of `text`, `tsv`, "),
        ("{format: tvs, path: a}", "did you mean `tsv`?"),
        ("{format: 3}", "`data.train.format`: the number 3 is none of `text`"),
        ("{format: tsv, path: 5}", "`data.train.path`: text was expected, not the number 5"),
        ("{format: tsv}", "`data.train.path`: is required and missing"),
        ("{path: a}", "`data.train.path`: unknown with `format: text`; it goes with `format: tsv`"),
        ("{sorce: a, target: b}", "`data.train.sorce`: unknown; did you mean `data.train.source`?"),
        ("c/train", "`data.train`: keys such as `corpus` were expected under it, not `c/train`"),
        ("", "`data.train`: keys such as `corpus` were expected under it, not `null`"),
        ("{}", "`data.train`: needs `corpus`, or both `source` and `target`"),
        ("{source: a}", "`data.train`: `target` is missing: `source` and `target` go together"),
        ("{target: a}", "`data.train`: `source` is missing: `source` and `target` go together"),
        ("{corpus: train}", "`train` does not have the right form: `name/split`, as $MT"),
    ],
)
def test_sources(file: Path, source: str, told: str) -> None:
    text = message(file, BASE.replace("{corpus: c/train}", source))
    assert told in text
    assert "\n" not in text


def test_a_source_without_a_format_is_text(file: Path) -> None:
    text = BASE.replace("{corpus: c/train}", "{source: a.en, target: a.de}")
    assert load(file, text).data.train.format == "text"


def test_all_problems_are_told_at_once_in_the_order_of_the_file(file: Path) -> None:
    added = "model:\n  nrom: layernorm\n  heads: '8'\n  heads: 2\ndecoding: {beam: 0}\n"
    assert message(file, BASE + added, "seed=-1").splitlines() == [
        "FILE: 5 problems",
        "FILE:9: `model.nrom`: unknown; did you mean `model.norm`?",
        "FILE:10: `model.heads`: a whole number was expected, not the text `8` "
        "(leave out the quotes)",
        "FILE:11: `model.heads`: given twice, first on line 10",
        "FILE:12: `decoding.beam`: 0 is out of range: must be at least 1",
        "--set seed: -1 is out of range: must be at least 0",
    ]


def test_what_is_required_and_missing_is_named(file: Path) -> None:
    assert message(file, "seed: 1\ndata: {source_language: en}").splitlines() == [
        "FILE: 3 problems",
        "FILE:2: `data.target_language`: is required and missing",
        "FILE:2: `data.train`: is required and missing",
        "FILE:2: `data.valid`: is required and missing",
    ]


def test_a_required_key_that_is_misspelt_is_not_called_missing_too(file: Path) -> None:
    told = "FILE:4: `data.trian`: unknown; did you mean `data.train`?"
    assert message(file, BASE.replace("train:", "trian:")) == told


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "FILE: is empty; a config needs at least `data`"),
        (b"# nothing\n", "FILE: is empty; a config needs at least `data`"),
        (b"- a\n", "FILE: holds no keys; a config is made of lines like `seed: 1`"),
        (b"seed: 1\ndata: [\n", "FILE:3: not valid YAML: "),
        (b"seed: 1\na: b: c\n", "FILE:2: not valid YAML: mapping values are not allowed here"),
        (b"seed: 1\n---\nseed: 2\n", "FILE:2: not valid YAML: but found another document"),
        (b"seed: 1\ndata: \xff\n", "FILE:2: not UTF-8"),
        (b"seed: 1\ndata: \x01\n", "FILE:2: not valid YAML: a character that may not stand in it"),
    ],
)
def test_what_is_no_yaml(file: Path, content: bytes, told: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load_config(file)
    text = str(error.value).replace(str(file), "FILE")
    assert text.startswith(told)
    assert "\n" not in text


def test_a_missing_file_names_the_nearest_one(tmp_path: Path) -> None:
    recipe = tmp_path / "multi30k-en-de.yaml"
    recipe.write_text(BASE)
    for wrong in ("multi30-en-de.yaml", "multi30k-en-de"):
        with pytest.raises(ConfigError) as error:
            load_config(tmp_path / wrong)
        assert str(error.value) == f"{tmp_path / wrong}: no such file; did you mean `{recipe}`?"
    with pytest.raises(ConfigError, match="no such file$"):
        load_config(tmp_path / "wholly-different.yaml")
    with pytest.raises(ConfigError, match=r"no such file \(nor a folder .*nowhere\)$"):
        load_config(tmp_path / "nowhere" / "a.yaml")
    with pytest.raises(ConfigError, match="is a folder, a config file was expected; it holds `"):
        load_config(tmp_path)


def test_an_override_is_read_as_yaml_and_wins(file: Path) -> None:
    config = load(
        file,
        BASE + "model: {heads: 4}\n",
        "model.heads=2",
        "training.learning_rate=1e-4",
        "data.tests.flickr.corpus=c/flickr",
        "data.tests.news={format: tsv, path: a.tsv}",
        "training.max_updates=",
        "training.max_epochs=3",
        "seed=1",
        "seed=2",
    )
    assert config.model.heads == 2
    assert config.training.learning_rate == 1e-4
    assert config.data.tests["flickr"].corpus == "c/flickr"
    assert config.data.tests["news"].format == "tsv"
    assert config.training.max_updates is None
    assert config.seed == 2


def test_a_file_that_an_override_names_is_taken_instead_of_the_corpus(file: Path) -> None:
    both = BASE.replace("{corpus: c/train}", "{corpus: c/train, source: a.en, target: a.de}")
    train = load(file, both, "data.train.source=b.en").data.train
    assert train == TextSource(source="b.en", target="a.de")
    assert load(file, both, "data.train.sha256_source=unverified").data.train == TextSource(
        corpus="c/train", source="a.en", target="a.de"
    )
    unnamed = load(file, BASE, "data.train.source=null").data.train
    assert unnamed == TextSource(corpus="c/train")
    later = load(file, both, "data.train.target=b.de", "data.train.corpus=d/train").data.train
    assert later == TextSource(corpus="d/train", source="a.en", target="b.de")
    told = "`target` is missing: `source` and `target` go together"
    assert told in message(file, BASE, "data.train.source=b.en")


@pytest.mark.parametrize("key", ["name", "revision", "subset", "folder", "split"])
def test_so_is_a_dataset_of_the_hub(file: Path, key: str) -> None:
    pinned = f"{{format: hub, corpus: c/train, name: o/d, revision: {'a' * 40}}}"
    hub = BASE.replace("{corpus: c/train}", pinned)
    kept = load(file, hub).data.train
    assert isinstance(kept, HubSource)
    assert kept.corpus == "c/train"
    given = "b" * 40 if key == "revision" else "other"
    train = load(file, hub, f"data.train.{key}={given}").data.train
    assert train == kept.model_copy(update={"corpus": None, key: given})


def test_a_split_that_is_called_like_a_key_replaces_no_other(file: Path) -> None:
    two = BASE.replace("training:", "  tests: {corpus: {corpus: c/a}}\ntraining:")
    tests = load(file, two, "data.tests.name={corpus: c/b}").data.tests
    assert tests == {"corpus": TextSource(corpus="c/a"), "name": TextSource(corpus="c/b")}


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("model.nrom=x", "--set model.nrom: unknown; did you mean `model.norm`?"),
        ("model.heads='2'", "--set model.heads: a whole number was expected, not the text `2`"),
        ("model.heads=7", "--set model.heads: `model.d_model` 512 is no multiple of `model.heads"),
        ("modle.heads=7", "--set modle.heads: `modle`: unknown; did you mean `model`?"),
        ("seed.x=1", "--set seed.x: unknown; `seed` is a single value"),
        ("model.heads.x=1", "--set model.heads.x: `model.heads`: a whole number was expected"),
        ("data.tests.a.sorce=x", "--set data.tests.a.sorce: unknown; did you mean `data.tests.a.s"),
        ("data.tests.a.source=x", "--set data.tests.a.source: `data.tests.a`: `target` is missi"),
        ("data.tests.a b.corpus=c/t", "`data.tests.a b`: a name is made of letters, digits, "),
        ("data.train=x", "--set data.train: keys such as `corpus` were expected under it, not `x`"),
        ("data.target_language=German", "`German` does not have the right form: Language code"),
        ("seed", "--set seed: write it as `KEY=VALUE`"),
        ("=1", "--set =1: write it as `KEY=VALUE`"),
        ("model..heads=1", "--set model..heads=1: write it as `KEY=VALUE`"),
        ("model.heads=[1", "--set model.heads: `[1` is not valid YAML: "),
        ("model.heads=\x01", "--set model.heads: `\x01` is not valid YAML: "),
        ("seed=!x 1", "--set seed: `!x 1` is not valid YAML: the tag `!x` is not known here"),
        ("tokenizer.from=\udcff", "--set tokenizer.from: the value is not UTF-8"),
    ],
)
def test_a_wrong_override_is_named(file: Path, override: str, told: str) -> None:
    text = message(file, BASE + "seed: 3\n", override)
    assert told in text
    assert "\n" not in text


def test_a_loaded_config_can_be_overridden(file: Path) -> None:
    config = load(file, BASE)
    changed = override_config(config, ["decoding.beam=2", "training.device=cpu"])
    assert (changed.decoding.beam, changed.training.device) == (2, "cpu")
    assert override_config(changed, ["decoding.beam=5", "training.device=auto"]) == config
    with pytest.raises(ConfigError) as error:
        override_config(config, ["decoding.bem=2", "decoding.beam=x"])
    assert str(error.value).splitlines() == [
        "2 problems",
        "--set decoding.bem: unknown; did you mean `decoding.beam`?",
        "--set decoding.beam: a whole number was expected, not `x`",
    ]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (
            "beam=4",
            "--set beam: only keys of `decoding` can be set here; did you mean `decoding.be",
        ),
        ("model.norm=x", "--set model.norm: only keys of `decoding` can be set here"),
        ("decoding=3", "--set decoding: only keys of `decoding` can be set here"),
    ],
)
def test_overrides_can_be_kept_to_one_section(override: str, told: str) -> None:
    require_section(["decoding.beam=4", "decoding.search=greedy"], "decoding")
    with pytest.raises(ConfigError) as error:
        require_section(["decoding.beam=4", override], "decoding")
    assert str(error.value).startswith(told)
