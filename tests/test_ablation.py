"""The example of an ablation: the file, the runs and the table."""

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from mt.config import TrainingConfig
from mt.config.loading import load_config
from mt.errors import ConfigError
from mt.evaluation.scores import Score
from mt.training import trainer as training
from mt.training.optimizer import learning_rate
from mt.training.run_folder import RunFolder
from mt.training.trainer import train
from tests.factories import RECIPE, load_script

ablate: Any = load_script(Path(__file__).parent.parent / "examples" / "ablation.py")
HEAD = "config: recipe.yaml\nset: [model.dropout=0.2]\nseeds: [3, 1]\nsplit: news\n"
SET = ["training.max_updates=6", "training.validate_every=6", "decoding.search=greedy"]
TINY = f"set: [{', '.join(SET)}]\nseeds: [1, 2]\nsplit: test\n"


@pytest.fixture
def _recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tests = "  tests: {news: {corpus: c/news}}\ntraining:"
    Path("recipe.yaml").write_text(RECIPE.replace("training:", tests))


def load(text: str) -> Any:
    Path("a.yaml").write_text(text)
    return ablate.load_ablation(Path("a.yaml"))


@pytest.mark.usefixtures("_recipe")
def test_variant_is_the_recipe_with_set_and_its_changes() -> None:
    changes = "changes:\n  wide: [model.d_ff=64, model.dropout=0.5]\n  x.1: [model.heads=4]\n"
    ablation = load(HEAD + changes)
    assert (ablation.seeds, ablation.split) == ((3, 1), "news")
    recipe = Path("recipe.yaml")
    assert ablation.configs == {
        "base": load_config(recipe, overrides=["model.dropout=0.2"]),
        "wide": load_config(recipe, overrides=["model.dropout=0.5", "model.d_ff=64"]),
        "x.1": load_config(recipe, overrides=["model.dropout=0.2", "model.heads=4"]),
    }


@pytest.mark.usefixtures("_recipe")
@pytest.mark.parametrize(
    ("text", "place"),
    [
        (HEAD + "changes:\n  a: [model.nrom=rmsnorm]\n", "a.yaml: `changes.a`: --set model.nrom"),
        (HEAD + "changes:\n  a: [model.dropout=0.2]\n", "a.yaml: `changes.a`: "),
        (HEAD + 'changes:\n  a: ["data.tests={}"]\n', "a.yaml: `changes.a`: "),
        (HEAD + "changes:\n  a: [seed=4]\n", "a.yaml:5: "),
        (HEAD.replace("dropout", "drop"), "a.yaml: `base`: --set model.drop: "),
        (HEAD.replace("[3, 1]", "[3, 3]"), "a.yaml:3: `seeds`"),
    ],
)
def test_problem_is_one_line_that_names_the_change(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(text)
    assert str(error.value).startswith(place)
    assert "\n" not in str(error.value)


def saved(recipe: Path, folder: Path, text: str) -> Any:
    (folder / "a.yaml").write_text(f"config: {recipe}\n{text}")
    return ablate.load_ablation(folder / "a.yaml")


def test_each_run_equals_a_run_of_train_and_is_trained_once(
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.set_num_threads(1)
    ablation = saved(tiny_recipe, tmp_path, TINY + "changes: {untied: [model.tie_embeddings=none]}")
    runs = tmp_path / "runs"
    scores = ablate.run_ablation(ablation, runs)
    config = load_config(tiny_recipe, overrides=[*SET, "model.tie_embeddings=none", "seed=2"])
    train(config, tmp_path / "alone")
    trained, alone = RunFolder(runs / "untied-seed2"), RunFolder(tmp_path / "alone")
    assert trained.weights.read_bytes() == alone.weights.read_bytes()
    assert load_config(trained.config) == config
    for name, by_seed in scores.items():
        for seed, run in by_seed.items():
            folder = runs / f"{name}-seed{seed}"
            score = json.loads((folder / "model.json").read_text())["score"]
            assert f"loss {run.valid_loss:.3f}, " in score
            assert run.valid_bleu.as_text() in score
            bleu = json.loads((folder / "evaluations" / "test.json").read_text())["bleu"]
            assert run.test_bleu == Score("BLEU", bleu["score"], bleu["signature"])
    # Three embedding matrices of 300 tokens x 32 instead of one.
    assert scores["untied"][1].parameters - scores["base"][1].parameters == 2 * 300 * 32

    def refused(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("already done")

    monkeypatch.setattr(training.Trainer, "run_updates", refused)
    monkeypatch.setattr(ablate, "evaluate_run", refused)
    capsys.readouterr()
    assert ablate.run_ablation(ablation, runs) == scores
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines if line.startswith("run ")] == [
        *("base-seed1", "untied-seed1", "base-seed2", "untied-seed2")
    ]


def test_other_runs_continue_after_a_diverged_run(
    tiny_recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def explode(update: int, config: TrainingConfig, width: int) -> float:
        return 1e30 if config.learning_rate == 100 else learning_rate(update, config, width)

    monkeypatch.setattr(training, "learning_rate", explode)
    monkeypatch.chdir(tmp_path)
    wild = (  # diverges before its first validation
        "wild: [training.learning_rate=100, training.gradient_clip=0, training.max_updates=40,"
        " training.validate_every=40]"
    )
    text = f"{TINY}changes: {{{wild}, dry: [model.dropout=0]}}".replace("[1, 2]", "[1]")
    saved(tiny_recipe, tmp_path, text)
    monkeypatch.setattr("sys.argv", ["ablation.py", "a.yaml"])
    assert ablate.main() == 0
    out, err = capsys.readouterr()
    rows = {line.split()[1]: line for line in out.splitlines() if line.startswith("|")}
    assert rows["wild"].endswith("| 0, 1 diverged |")
    assert rows["dry"].endswith("| 1 |")
    assert "text:lower-cased" in out
    assert "diverged: runs/ablation-a/wild-seed1: 26 updates in a row" in err


SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


def run_scores(rate: float, loss: float, valid: float, test: float) -> Any:
    valid_bleu, test_bleu = (Score("BLEU", value, SIGNATURE) for value in (valid, test))
    return ablate.RunScores(1_234_567, rate, loss, valid_bleu, test_bleu)


def test_table_has_means_deviations_and_differences_over_common_seeds() -> None:
    scores = {
        "base": {1: run_scores(8, 2.0, 20, 30), 2: run_scores(10, 2.2, 22, 33)},
        "rotary": {1: run_scores(9, 1.9, 21, 31.5), 2: run_scores(9, 1.7, 25, 28)},
        "pre": {1: None, 2: run_scores(5, 2.0, 22, 34)},
        "glu": {1: None, 2: None},
    }
    table, _, notes = ablate.format_scores(scores, "news").partition("\n\n")
    head, _, *rows = ([cell.strip() for cell in line.split("|")] for line in table.splitlines())
    assert head[1:4] == ["variant", "parameters", "tokens/s"]
    assert [row[1:-1] for row in rows] == [
        [
            *("base", "1,234,567", "9 ± 1", "-", "2.100 ± 0.141", "-"),
            *("21.00 ± 1.41", "-", "31.50 ± 2.12", "-", "2"),
        ],
        [
            *("rotary", "1,234,567", "9 ± 0", "+0", "1.800 ± 0.141", "-0.300"),
            *("23.00 ± 2.83", "+2.00", "29.75 ± 2.47", "-1.75", "2"),
        ],
        [
            *("pre", "1,234,567", "5", "-5", "2.000", "-0.200"),
            *("22.00", "+0.00", "34.00", "+1.00", "1, 1 diverged"),
        ],
        ["glu", *["-"] * 9, "0, 2 diverged"],
    ]
    assert notes.splitlines()[0] == f"- BLEU: {SIGNATURE}"
