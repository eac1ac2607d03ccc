import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mt.config import TokenizerConfig
from mt.data.pairs import SentencePair
from mt.data.tokenizer_training import train_tokenizer
from mt.decoding.scoring import SCORING
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator
from mt.errors import ConfigError, RunError
from mt.files import hash_file
from mt.model.transformer import Transformer
from mt.runs import best_checkpoint
from mt.training.state import Ranked
from mt.training.validation import Validation
from tests.factories import flip_bit, train_with

LINES = ["one two", "", "three four five six seven"]


def weights_of(run: Path) -> Path:
    return run / "model.safetensors"


def describe(run: Path, **changes: Any) -> None:
    path = run / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}), encoding="utf-8")


def saved_weights_are_loaded(run: Path, model: Transformer) -> bool:
    saved, loaded = load_file(weights_of(run)), dict(model.named_parameters())
    return saved.keys() == loaded.keys() and all(
        torch.equal(loaded[name], saved[name]) for name in saved
    )


def test_loaded_run_has_the_saved_weights_and_settings(run: Path) -> None:
    describe(run, longest_source=16)
    translator = Translator.load(run, overrides=["decoding.beam=1"], device="cpu")
    assert translator.longest_source == 16
    assert (translator.decoding.beam, translator.decoding.max_length_extra) == (1, 10)
    assert isinstance(translator.engine, TorchEngine)
    assert saved_weights_are_loaded(run, translator.engine.model)
    assert [bool(text) for text in translator.translate(LINES)] == [True, False, True]


def test_run_translates_in_bf16_and_scores_in_fp32_by_default(run: Path) -> None:
    overrides = ["decoding.precision=bf16"]
    translator = Translator.load(run, overrides=overrides, device="cpu")
    assert isinstance(translator.engine, TorchEngine)
    assert {each.dtype for each in translator.engine.model.parameters()} == {torch.bfloat16}
    assert [bool(text) for text in translator.translate(LINES)] == [True, False, True]
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("precision: auto", "precision: bf16"))
    for given, dtype in (([], torch.float32), (overrides, torch.bfloat16)):
        engine = Translator.load(run, overrides=[*SCORING, *given], device="cpu").engine
        assert isinstance(engine, TorchEngine)
        assert engine.model.output.weight.dtype == dtype


def test_runs_with_the_same_tokenizer_form_an_ensemble(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    generator = torch.Generator().manual_seed(5)
    changed = {
        name: value + 0.5 * torch.randn(value.shape, generator=generator)
        for name, value in load_file(weights_of(other)).items()
    }
    save_file(changed, weights_of(other))
    describe(other, weights=hash_file(weights_of(other)))
    both = Translator.load(run, overrides=[f"decoding.ensemble=[{other}]"], device="cpu")
    assert isinstance(both.engine, TorchEngine)
    assert all(map(saved_weights_are_loaded, (run, other), both.engine.models))
    swapped = Translator.load(other, overrides=[f"decoding.ensemble=[{run}]"])
    assert both.translate(LINES) == swapped.translate(LINES)
    scores = [
        [each.score for each in translator.stream(LINES)]
        for translator in (both, Translator.load(run), Translator.load(other))
    ]
    assert scores[0] != scores[1] != scores[2] != scores[0]


def test_ensemble_with_another_tokenizer_is_an_error(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    shutil.rmtree(other / "tokenizer")
    tokenizer = train_tokenizer(
        lambda: iter([SentencePair("a red dog", "a blue cat")] * 9),
        other / "tokenizer",
        config=TokenizerConfig(vocabulary_size=300),
    )
    describe(other, tokenizer=tokenizer.fingerprint)
    message = f"^{other}: `decoding.ensemble` needs the same tokenizer"
    with pytest.raises(RunError, match=message):
        Translator.load(run, overrides=[f"decoding.ensemble=[{other}]"], device="cpu")


def truncate_with_valid_checksum(run: Path) -> None:
    weights_of(run).write_bytes(weights_of(run).read_bytes()[:-100])
    describe(run, weights=hash_file(weights_of(run)))


def change_shape(run: Path) -> None:
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("d_ff: 64", "d_ff: 48"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "config.yaml").unlink(), "config.yaml"),
        (lambda run: (run / "model.json").unlink(), "has not finished.*mt train "),
        (lambda run: weights_of(run).unlink(), "model.safetensors.*missing"),
        (lambda run: (run / "model.json").write_text("{"), "model.json: damaged"),
        (lambda run: (run / "model.json").write_text("[]"), "model.json: damaged"),
        (lambda run: describe(run, longest_source="x"), "model.json: damaged"),
        (lambda run: describe(run, format=2), "format 2.* 1"),
        (lambda run: describe(run, tokenizer="f" * 64), "tokenizer of another run.*f{12}"),
        (lambda run: shutil.rmtree(run / "tokenizer"), "run/tokenizer: no such folder"),
        (lambda run: flip_bit(weights_of(run)), "damaged .*SHA-256.*model.json"),
        (truncate_with_valid_checksum, "damaged"),
        (change_shape, "does not fit the config: `.*` is 64.* 48"),
    ],
)
def test_each_damage_is_one_clear_error(run: Path, damage: Any, message: str) -> None:
    damage(run)
    with pytest.raises(RunError, match=message) as caught:
        Translator.load(run, device="cpu")
    assert str(run) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unfinished_run_is_loaded_with_its_best_checkpoint(
    tiny_recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, losses = tmp_path / "run", iter([3.0, 1.0, 2.0])
    settings = ["max_updates=6", "validate_every=2", "checkpoint_every=1", "ema_decay=0.8"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Validation, "ranked", lambda _, update, __: Ranked(update, -next(losses), 0))
        train_with(tiny_recipe, run, *settings, "average=off", "keep_last=3")
    final = Translator.load(run, device="cpu")
    final_weights = weights_of(run).read_bytes()
    for name in ("model.json", "model.safetensors"):
        (run / name).unlink()
    caplog.clear()
    translator = Translator.load(run, device="cpu")
    best = run / "checkpoints" / "update-000000004"
    assert caplog.messages == [
        f"{run}: the training has not finished; using its best checkpoint, {best}"
    ]
    assert weights_of(best).read_bytes() == final_weights
    assert isinstance(translator.engine, TorchEngine)
    assert saved_weights_are_loaded(best, translator.engine.model)
    assert translator.translate(LINES) == final.translate(LINES)
    # A checkpoint without a validation, and one that a killed program left under its hidden name.
    shutil.rmtree(best)
    shutil.rmtree(run / "checkpoints" / "update-000000002", ignore_errors=True)
    newest = run / "checkpoints" / "update-000000006"
    shutil.copytree(newest, newest.with_name(f".{newest.name}"))
    assert best_checkpoint(run)[0] == newest.with_name(f".{newest.name}")


def test_missing_run_folder_and_other_overrides_are_refused(run: Path) -> None:
    with pytest.raises(RunError, match="no such run folder; did you mean `run`"):
        Translator.load(run.parent / "runs")
    with pytest.raises(RunError):
        Translator.load(run / "config.yaml")
    for key in ("model.heads", "decoding.bean"):
        with pytest.raises(ConfigError, match=key):
            Translator.load(run, overrides=[f"{key}=4"])
