"""`make bench`: the order of the runs, what is made of their numbers, and which corpus it takes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mt.config.loading import load_config
from mt.data.tokenizer import Tokenizer
from mt.errors import DataError, UserError

SCRIPT = Path(__file__).parents[2] / "bench" / "training.py"
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def module(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("training")


def run(module: ModuleType, rate: float, gemm: float = 100e9, **changes: Any) -> Any:
    values = {
        "target_tokens": 1000,
        "target_rate": rate,
        "cpu_seconds": 3000 / rate,
        "matmul_rates": (gemm, gemm),
        "loss": 8.0,
        "peak_rss_mib": 1500.0,
        "flops_per_target_token": 40e6,
    }
    return module.Run(**{**values, **changes})


def test_ratio_share_and_steadiness_of_a_pair(module: ModuleType) -> None:
    pair = module.Pair(run(module, 1000), run(module, 1500, 109e9, cpu_seconds=1.5))
    assert pair.ratio == 1.5
    assert pair.cpu_ratio == 2.0
    assert pair.share(pair.plain) == pytest.approx(1000 * 40e6 / 100e9)
    assert pair.share(pair.mt) == pytest.approx(1500 * 40e6 / 109e9)
    assert pair.steady
    moved = run(module, 1500, matmul_rates=(100e9, 111e9))
    assert not module.Pair(run(module, 1000), moved).steady


def test_the_table_and_the_medians(module: ModuleType) -> None:
    plain = run(module, 1000)
    pairs = [module.Pair(plain, run(module, rate)) for rate in (1500, 1400)]
    pairs.append(module.Pair(plain, run(module, 9000, 90e9)))
    lines = [line.split() for line in module.table(pairs).splitlines()]
    assert lines[1] == ["1", "1,000", "1,500", "1.50", "1.50", "100-100", "40.0%", "60.0%"]
    assert lines[3] == ["3", "*", "1,000", "9,000", "9.00", "9.00", "90-100", "40.0%", "400.0%"]
    all_, beside, _, steady = module.summary(pairs, 2, 20).splitlines()
    assert all_.startswith("mt/plain: median 1.50 of 3, 1.40 to 9.00; mt at 60.0% of the matrix")
    assert all_.endswith("(20 updates a run, 2 threads)")
    assert "1,500 MiB plain" in beside
    assert steady.startswith("without these: mt/plain: median 1.45 of 2, 1.40 to 1.50; mt at 58.0%")
    assert len(module.summary(pairs[:2], 2, 20).splitlines()) == 2


@pytest.fixture
def programs(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let both programs answer at once; return the list of who was called."""
    called: list[str] = []

    def rate(*_: object) -> float:
        called.append("gemm")
        return 100e9

    def output(command: list[str], environment: dict[str, str]) -> str:
        name = "mt" if "-m" in command else "plain"
        called.append(name)
        assert environment["OMP_NUM_THREADS"] == "1"
        assert command[command.index("--updates") + 1] == "7"
        rate = {"mt": 1500, "plain": 1000}[name]
        values = {
            "target_tokens": 10,
            "target_tokens_per_second": rate,
            "loss": 8,
            "cpu_seconds": 1,
        }
        if name == "mt":
            values["flops_per_target_token"] = 40_000_000
        return json.dumps({**values, "loss": 8, "cpu_seconds": 1, "peak_rss_mib": 1})

    monkeypatch.setattr(module, "matmul_rate", rate)
    monkeypatch.setattr(module, "_output", output)
    return called


def call(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["training.py", *map(str, arguments)])
    return int(module.main())


def test_the_programs_take_turns_in_going_first(
    module: ModuleType,
    programs: list[str],
    tiny_recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--pairs", "3", "--updates", "7", "--threads", "1")
    assert call(module, monkeypatch, tiny_recipe, *options) == 0
    order = ["plain", "mt", "mt", "plain", "plain", "mt"]
    assert programs == [each for name in order for each in ("gemm", name, "gemm")]
    out = capsys.readouterr().out
    assert "mt/plain: median 1.50 of 3, 1.50 to 1.50; mt at 60.0% of the matrix-product" in out


def test_both_get_the_same_tokenizer_and_train_on_the_cpu_in_fp32(
    module: ModuleType, tiny_recipe: Path, tmp_path: Path
) -> None:
    config = load_config(tiny_recipe, overrides=["training.device=auto"])
    recipe, vocabulary = module.prepare(config, tmp_path)
    shared = load_config(recipe)
    assert shared.tokenizer.from_ is not None
    assert Tokenizer.load(shared.tokenizer.from_).target_size == vocabulary
    assert (shared.training.device, shared.training.precision) == ("cpu", "fp32")
    assert (shared.data, shared.model) == (config.data, config.model)


def test_without_its_corpus_the_reference_is_trained_on_the_embedded_one(
    module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("MT_CORPORA", raising=False)
    config = module.choose_config(None)
    assert (config.data.source_language, config.data.target_language) == ("en", "zh")
    assert (config.model.d_model, config.tokenizer.vocabulary_size) == (256, 8000)
    assert "embedded corpus" in capsys.readouterr().err

    (tmp_path / "multi30k").mkdir()
    for language in ("en", "de"):
        (tmp_path / "multi30k" / f"train.{language}").touch()
    monkeypatch.setenv("MT_CORPORA", str(tmp_path))
    assert module.choose_config(None).data.target_language == "de"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "tokens", "shape"),
    [("reference", 4096, (256, 1024, 4, 3, 3)), ("base-gpu", 25_000, (512, 2048, 8, 6, 6))],
)
def test_what_is_measured(name: str, tokens: int, shape: tuple[int, ...]) -> None:
    config = load_config(CONFIGS / "bench" / f"{name}.yaml")
    model, training = config.model, config.training
    layers = model.encoder_layers, model.decoder_layers
    assert (model.d_model, model.d_ff, model.heads, *layers) == shape
    assert (training.target_tokens_per_update, training.label_smoothing) == (tokens, 0.1)
    assert (model.dropout, model.residual, model.tie_embeddings) == (0.1, "post", "all")
    recipe = load_config(CONFIGS / "multi30k-en-de.yaml").data
    assert (config.data.train, config.data.tests) == (recipe.train, recipe.tests)


def test_runs_that_are_not_of_the_same_updates_are_refused(module: ModuleType) -> None:
    module._check_same_updates(module.Pair(run(module, 1), run(module, 2)))
    with pytest.raises(UserError, match=r"1,000 target tokens in plain.py, 999 in mt"):
        module._check_same_updates(module.Pair(run(module, 1), run(module, 2, target_tokens=999)))


def test_a_run_that_fails_ends_it(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "matmul_rate", lambda *_: 1e9)

    def failing() -> str:
        raise subprocess.CalledProcessError(2, "mt")

    with pytest.raises(UserError, match="the run of mt failed with status 2"):
        module.measure("mt", failing, set())


def test_a_corpus_that_is_not_there_is_told(
    module: ModuleType, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(tiny_recipe.read_text().replace("train.en", "trian.en"))
    with pytest.raises(DataError, match="trian.en"):
        call(module, monkeypatch, recipe)


@pytest.mark.slow
def test_the_two_programs_really_take_the_same_updates(
    module: ModuleType,
    tiny_recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--pairs", "1", "--updates", "3", "--threads", "1")
    assert call(module, monkeypatch, tiny_recipe, *options) == 0
    assert "mt/plain: median" in capsys.readouterr().out
