"""Ablation files."""

import typing
from pathlib import Path

import pytest

from mt.config.ablation import BASE, Ablation, load_ablation
from mt.config.loading import load_config
from mt.config.model import ModelConfig
from mt.errors import ConfigError
from tests.factories import RECIPE

ABLATIONS = sorted((Path(__file__).parents[2] / "configs" / "ablation").glob("*.yaml"))
HEAD = "config: recipe.yaml\nset: [model.dropout=0.2]\nseeds: [3, 1]\nsplit: news\n"


@pytest.fixture(autouse=True)
def _recipe_in_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tests = "  tests: {news: {corpus: c/news}}\ntraining:"
    Path("recipe.yaml").write_text(RECIPE.replace("training:", tests))


def load(text: str) -> Ablation:
    Path("a.yaml").write_text(text)
    return load_ablation(Path("a.yaml"))


def message(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(text)
    return str(error.value)


def test_variant_is_the_recipe_with_set_and_its_changes() -> None:
    changes = "changes:\n  wide: [model.d_ff=64, model.dropout=0.5]\n  x.1: [model.heads=4]\n"
    ablation = load(HEAD + changes)
    assert (ablation.seeds, ablation.split) == ((3, 1), "news")
    recipe = Path("recipe.yaml")
    expected = {
        BASE: ["model.dropout=0.2"],
        "wide": ["model.dropout=0.5", "model.d_ff=64"],
        "x.1": ["model.dropout=0.2", "model.heads=4"],
    }
    for variant, (name, overrides) in zip(ablation.variants, expected.items(), strict=True):
        assert variant.name == name
        assert variant.config == load_config(recipe, overrides=overrides)
        assert variant.seeded(3) == load_config(recipe, overrides=[*overrides, "seed=3"])
    assert ablation.variants[1].changes == ("model.d_ff=64", "model.dropout=0.5")


def test_set_split_and_changes_are_optional() -> None:
    ablation = load("config: recipe.yaml\nseeds: [1]\n")
    assert [variant.name for variant in ablation.variants] == [BASE]
    assert ablation.split is None


def test_preset_in_changes_replaces_the_sizes_of_the_recipe() -> None:
    ablation = load(HEAD + "changes: {tiny: [model.preset=transformer-tiny]}\n")
    base, tiny = (variant.config.model for variant in ablation.variants)
    assert tiny.d_model < base.d_model
    assert (tiny.dropout, base.dropout) == (0.3, 0.2)


@pytest.mark.parametrize(
    ("text", "message_start"),
    [
        (
            HEAD + "changes:\n  a: [model.nrom=rmsnorm]\n",
            "a.yaml:6: `changes.a`: --set model.nrom: unknown; did you mean `model.norm`?",
        ),
        (
            HEAD + "changes:\n  a: [data.max_pieces=9]\n",
            "a.yaml:6: `changes.a`: --set data.max_pieces: renamed to `data.max_tokens`",
        ),
        (
            HEAD + "changes:\n  a: [model.heads=3]\n",
            "a.yaml:6: `changes.a`: --set model.heads: `model.d_model` 512 is not a multiple of "
            "`model.heads` 3",
        ),
        (
            HEAD + "changes:\n  a: [model.heads]\n",
            "a.yaml:6: `changes.a`: --set model.heads: write it as `KEY=VALUE`",
        ),
        (
            HEAD + "changes:\n  a: [model.dropout=0.2]\n",
            "a.yaml:6: `changes.a`: changes nothing; it is the same as `base`",
        ),
        (
            HEAD + "changes:\n  a: []\n",
            "a.yaml:6: `changes.a`: changes nothing; it is the same as `base`",
        ),
        (
            HEAD + 'changes:\n  a: ["data.tests={}"]\n',
            "a.yaml:6: `changes.a`: the config has no split `news`; there are `valid`",
        ),
        (
            HEAD + "changes:\n  a: model.heads=4\n",
            "a.yaml:6: `changes.a`: expected a list, got `model.heads=4`",
        ),
        (
            HEAD + "changes:\n  a: [4]\n",
            "a.yaml:6: `changes.a.0`: expected text, got the number 4",
        ),
        (
            HEAD + "changes:\n  a/b: [model.heads=4]\n",
            "a.yaml:6: `changes.a/b`: a name has only letters, digits",
        ),
        (
            HEAD + "changes:\n  base: [model.heads=4]\n",
            "a.yaml:6: `changes.base`: this name is reserved for the variant without a change",
        ),
        (
            HEAD + "changes:\n  a: [seed=4]\n",
            "a.yaml:6: `changes.a`: sets the seed, which comes from the list of seeds; remove it",
        ),
        (
            HEAD.replace("model.dropout=0.2", "seed=4"),
            "a.yaml:2: `set`: sets the seed, which comes from the list of seeds; remove it",
        ),
        (HEAD.replace("dropout", "drop"), "a.yaml: `base`: --set model.drop: unknown; did you mea"),
        (
            HEAD.replace("news", "new"),
            "a.yaml: `base`: the config has no split `new`; did you mean `news`?",
        ),
        (
            HEAD.replace("recipe.yaml", "recipe.yml"),
            "a.yaml: `base`: recipe.yml: no such file; did you mean `recipe.yaml`?",
        ),
        (HEAD.replace("[3, 1]", "[]"), "a.yaml:3: `seeds` is empty; name at least one seed"),
        (HEAD.replace("[3, 1]", "[3, 3]"), "a.yaml:3: `seeds` has a duplicate"),
        (HEAD.replace("[3, 1]", "[3, -1]"), "a.yaml:3: `seeds.1`: -1 is out of range: must be at "),
        (HEAD.replace("seeds:", "seed:"), "a.yaml:3: `seed`: unknown; did you mean `seeds`?"),
        ("seeds: [1]\n", "a.yaml: `config`: required, but missing"),
    ],
)
def test_problem_is_one_line_that_names_the_change(text: str, message_start: str) -> None:
    error = message(text)
    assert error.startswith(message_start)
    assert "\n" not in error


def test_all_problems_of_the_changes_are_reported_at_once() -> None:
    changes = "a: [model.nrom=x, model.heads=x], b: [model.d_ff=0], c: [model.d_ff=8]"
    head, *lines = message(f"{HEAD}changes: {{{changes}}}").splitlines()
    assert head == "a.yaml: 3 problems"
    for line, key in zip(lines, ["a`: --set model.", "a`: --set model.", "b`: --set"], strict=True):
        assert line.startswith(f"a.yaml:5: `changes.{key}")


@pytest.mark.parametrize("file", ABLATIONS, ids=lambda path: path.stem)
def test_variants_in_the_project_are_distinct(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parents[2])
    ablation = load_ablation(file)
    for variant in ablation.variants:
        alike = [each.name for each in ablation.variants if each.config == variant.config]
        assert alike == [variant.name]


def test_multi30k_ablation_has_every_variant_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (file,) = (path for path in ABLATIONS if path.stem == "multi30k")
    monkeypatch.chdir(file.parents[2])
    models = [variant.config.model for variant in load_ablation(file).variants]
    for key in ("positional", "norm", "residual", "feed_forward", "tie_embeddings"):
        words = typing.get_args(ModelConfig.model_fields[key].annotation)
        imported = {"fairseq"}  # variants of imported models alone
        assert {getattr(model, key) for model in models} == {*words} - imported
