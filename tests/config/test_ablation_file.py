"""The file of an ablation: what it makes, and every way in which it is refused."""

import typing
from pathlib import Path

import pytest

from mt.config.ablation import BASE, Ablation, load_ablation
from mt.config.loading import load_config
from mt.config.model import ModelConfig
from mt.errors import ConfigError

ABLATIONS = sorted((Path(__file__).parents[2] / "configs" / "ablation").glob("*.yaml"))
RECIPE = """\
data:
  source_language: en
  target_language: de
  train: {corpus: c/train}
  valid: {corpus: c/valid}
  tests: {news: {corpus: c/news}}
training: {max_updates: 100}
"""
HEAD = "config: recipe.yaml\nset: [model.dropout=0.2]\nseeds: [3, 1]\nsplit: news\n"


@pytest.fixture(autouse=True)
def _beside_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(RECIPE)


def load(text: str) -> Ablation:
    Path("a.yaml").write_text(text)
    return load_ablation(Path("a.yaml"))


def message(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(text)
    return str(error.value)


def test_each_variant_is_the_recipe_with_set_and_its_own_changes() -> None:
    changes = "changes:\n  wide: [model.d_ff=64, model.dropout=0.5]\n  x.1: [model.heads=4]\n"
    ablation = load(HEAD + changes)
    assert (ablation.seeds, ablation.split) == ((3, 1), "news")
    recipe = Path("recipe.yaml")
    settings = {
        BASE: ["model.dropout=0.2"],
        "wide": ["model.dropout=0.5", "model.d_ff=64"],
        "x.1": ["model.dropout=0.2", "model.heads=4"],
    }
    for variant, (name, overrides) in zip(ablation.variants, settings.items(), strict=True):
        assert variant.name == name
        assert variant.config == load_config(recipe, overrides=overrides)
        assert variant.seeded(3) == load_config(recipe, overrides=[*overrides, "seed=3"])
    assert ablation.variants[1].changes == ("model.d_ff=64", "model.dropout=0.5")


def test_set_split_and_changes_may_be_left_out() -> None:
    ablation = load("config: recipe.yaml\nseeds: [1]\n")
    assert [variant.name for variant in ablation.variants] == [BASE]
    assert ablation.split is None


def test_a_preset_among_the_changes_replaces_the_sizes_of_the_recipe() -> None:
    ablation = load(HEAD + "changes: {tiny: [model.preset=transformer-tiny]}\n")
    base, tiny = (variant.config.model for variant in ablation.variants)
    assert tiny.d_model < base.d_model
    assert (tiny.dropout, base.dropout) == (0.3, 0.2)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            HEAD + "changes:\n  a: [model.nrom=rmsnorm]\n",
            "a.yaml:6: `changes.a`: --set model.nrom: unknown; did you mean `model.norm`?",
        ),
        (
            HEAD + "changes:\n  a: [model.heads=3]\n",
            "a.yaml:6: `changes.a`: --set model.heads: `model.d_model` 512 is no multiple of "
            "`model.heads` 3",
        ),
        (
            HEAD + "changes:\n  a: [model.heads]\n",
            "a.yaml:6: `changes.a`: --set model.heads: write it as `KEY=VALUE`",
        ),
        (
            HEAD + "changes:\n  a: [model.dropout=0.2]\n",
            "a.yaml:6: `changes.a`: changes nothing, it is `base` again",
        ),
        (
            HEAD + "changes:\n  a: []\n",
            "a.yaml:6: `changes.a`: changes nothing, it is `base` again",
        ),
        (
            HEAD + 'changes:\n  a: ["data.tests={}"]\n',
            "a.yaml:6: `changes.a`: it has no split `news`; there are `valid`",
        ),
        (
            HEAD + "changes:\n  a: model.heads=4\n",
            "a.yaml:6: `changes.a`: a list was expected, not `model.heads=4`",
        ),
        (
            HEAD + "changes:\n  a: [4]\n",
            "a.yaml:6: `changes.a.0`: text was expected, not the number 4",
        ),
        (
            HEAD + "changes:\n  a/b: [model.heads=4]\n",
            "a.yaml:6: `changes.a/b`: a name is made of letters, digits",
        ),
        (
            HEAD + "changes:\n  base: [model.heads=4]\n",
            "a.yaml:6: `changes.base`: this is the name of the variant without a change",
        ),
        (
            HEAD + "changes:\n  a: [seed=4]\n",
            "a.yaml:6: `changes.a`: sets the seed, which is for the",
        ),
        (
            HEAD.replace("model.dropout=0.2", "seed=4"),
            "a.yaml:2: `set`: sets the seed, which is for",
        ),
        (HEAD.replace("dropout", "drop"), "a.yaml: `base`: --set model.drop: unknown; did you mea"),
        (
            HEAD.replace("news", "new"),
            "a.yaml: `base`: it has no split `new`; did you mea",
        ),
        (
            HEAD.replace("recipe.yaml", "recipe.yml"),
            "a.yaml: `base`: recipe.yml: no such file; did you mean `recipe.yaml`?",
        ),
        (HEAD.replace("[3, 1]", "[]"), "a.yaml:3: `seeds` names no seed"),
        (HEAD.replace("[3, 1]", "[3, 3]"), "a.yaml:3: `seeds` names one twice"),
        (HEAD.replace("[3, 1]", "[3, -1]"), "a.yaml:3: `seeds.1`: -1 is out of range: must be at "),
        (HEAD.replace("seeds:", "seed:"), "a.yaml:3: `seed`: unknown; did you mean `seeds`?"),
        ("seeds: [1]\n", "a.yaml: `config`: is required and missing"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_change(text: str, told: str) -> None:
    said = message(text)
    assert said.startswith(told)
    assert "\n" not in said


def test_everything_that_is_wrong_with_the_changes_is_told_at_once() -> None:
    changes = "a: [model.nrom=x, model.heads=x], b: [model.d_ff=0], c: [model.d_ff=8]"
    head, *lines = message(f"{HEAD}changes: {{{changes}}}").splitlines()
    assert head == "a.yaml: 3 problems"
    for line, key in zip(lines, ["a`: --set model.", "a`: --set model.", "b`: --set"], strict=True):
        assert line.startswith(f"a.yaml:5: `changes.{key}")


@pytest.mark.parametrize("file", ABLATIONS, ids=lambda path: path.stem)
def test_the_ablations_of_the_project_load(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parents[2])
    ablation = load_ablation(file)
    # No two variants are the same.
    for variant in ablation.variants:
        alike = [each.name for each in ablation.variants if each.config == variant.config]
        assert alike == [variant.name]


def test_the_ablation_of_multi30k_has_every_variant_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (file,) = (path for path in ABLATIONS if path.stem == "multi30k")
    monkeypatch.chdir(file.parents[2])
    models = [variant.config.model for variant in load_ablation(file).variants]
    for key in ("positional", "norm", "residual", "feed_forward", "tie_embeddings"):
        words = typing.get_args(ModelConfig.model_fields[key].annotation)
        assert {getattr(model, key) for model in models} == set(words)
