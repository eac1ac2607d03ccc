import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mt.config import Config, TokenizerConfig
from mt.config.loading import dump_config
from mt.data.pairs import SentencePair
from mt.data.tokenizer import train_tokenizer
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import load_translator
from mt.errors import ConfigError, RunError
from mt.files import file_sha256
from mt.model.transformer import Transformer

TEXT = "red blue green small large dog cat bird house tree sees likes finds the a in on"


def config() -> Config:
    return Config.model_validate(
        {
            "data": {
                "source_language": "en",
                "target_language": "de",
                "train": {"format": "text", "source": "a", "target": "b"},
                "valid": {"format": "text", "source": "a", "target": "b"},
            },
            "model": {
                "d_model": 16,
                "d_ff": 32,
                "heads": 2,
                "encoder_layers": 1,
                "decoder_layers": 1,
            },
            "training": {"max_updates": 1},
            "decoding": {"max_length_extra": 3, "beam": 2},
        }
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder as training leaves it, of a model that has learnt nothing."""
    run = tmp_path_factory.mktemp("runs") / "toy"
    words = TEXT.split()
    text = [" ".join(words[(i + j * j) % len(words)] for j in range(6)) for i in range(40)]
    tokenizer = train_tokenizer(
        lambda: (SentencePair(line, line) for line in text),
        run / "tokenizer",
        config=TokenizerConfig(vocabulary_size=320),
        seed=1,
    )
    size = tokenizer.source_size
    torch.manual_seed(3)
    model = Transformer(config().model, source_vocabulary=size, target_vocabulary=size)
    tensors = {name: value.detach() for name, value in model.named_parameters()}
    save_file(tensors, run / "model.safetensors")
    (run / "config.yaml").write_text(dump_config(config()), encoding="utf-8")
    description = {
        "format": 1,
        "source_vocabulary": size,
        "target_vocabulary": size,
        "longest_source": 16,
        "tokenizer": tokenizer.fingerprint,
        "weights": file_sha256(run / "model.safetensors"),
    }
    (run / "model.json").write_text(json.dumps(description), encoding="utf-8")
    return run


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "toy"))


def describe(run: Path, **changes: Any) -> None:
    path = run / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}), encoding="utf-8")


def test_a_loaded_run_translates_like_the_model_that_was_saved(run: Path) -> None:
    translator = load_translator(run, overrides=["decoding.beam=1"], device="cpu")
    assert translator.longest_source == 16
    assert translator.decoding.beam == 1
    assert translator.decoding.max_length_extra == 3
    assert translator.joiner == " "
    saved = load_file(run / "model.safetensors")
    loaded = dict(translator.engine.model.named_parameters())  # type: ignore[attr-defined]
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    lines = ["the red dog", "", "a cat sees the small bird in the large green house on a tree"]
    texts = translator.translate(lines)
    assert texts[0]
    assert [text == "" for text in texts] == [False, True, False]
    assert texts == load_translator(run, overrides=["decoding.beam=1"]).translate(lines)


def break_weights(run: Path) -> None:
    data = bytearray((run / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (run / "model.safetensors").write_bytes(data)


def cut_weights_unnoticed(run: Path) -> None:
    data = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(data[:-100])
    describe(run, weights=file_sha256(run / "model.safetensors"))


def change_shape(run: Path) -> None:
    text = (run / "config.yaml").read_text().replace("d_ff: 32", "d_ff: 48")
    (run / "config.yaml").write_text(text)


def test_runs_with_one_tokenizer_translate_together(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    generator = torch.Generator().manual_seed(5)
    changed = {
        name: value + 0.5 * torch.randn(value.shape, generator=generator)
        for name, value in weights.items()
    }
    save_file(changed, other / "model.safetensors")
    describe(other, weights=file_sha256(other / "model.safetensors"))
    lines = ["the red dog", "a cat sees the small bird"]
    both = load_translator(run, overrides=[f"decoding.ensemble=[{other}]"], device="cpu")
    assert isinstance(both.engine, TorchEngine)
    for model, folder in zip(both.engine.models, (run, other), strict=True):
        saved = load_file(folder / "model.safetensors")
        loaded = dict(model.named_parameters())
        assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    found = {
        name: [(each.text, each.score) for each in translator.stream(lines)]
        for name, translator in {
            "both": both,
            "swapped": load_translator(other, overrides=[f"decoding.ensemble=[{run}]"]),
            "first": load_translator(run),
            "second": load_translator(other),
        }.items()
    }
    assert [text for text, _ in found["both"]] == [text for text, _ in found["swapped"]]
    assert found["both"] != found["first"] != found["second"] != found["both"]


def test_a_run_with_another_tokenizer_joins_no_ensemble(run: Path, finished_run: Path) -> None:
    with pytest.raises(RunError, match="`decoding.ensemble` needs the same tokenizer") as refusal:
        load_translator(run, overrides=[f"decoding.ensemble=[{finished_run}]"], device="cpu")
    assert str(refusal.value).startswith(f"{finished_run}: ")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "config.yaml").unlink(), "is no run folder, it holds no config.yaml"),
        (lambda run: (run / "model.json").unlink(), "has not finished.*mt train .*goes on"),
        (lambda run: (run / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda run: (run / "model.json").write_text("{"), "model.json: damaged"),
        (lambda run: (run / "model.json").write_text("[]"), "model.json: damaged"),
        (lambda run: describe(run, longest_source="x"), "model.json: damaged"),
        (lambda run: describe(run, format=2), "of format 2, this version of mt knows 1"),
        (lambda run: describe(run, tokenizer="f" * 64), "tokenizer of another run.*f{12}"),
        (lambda run: shutil.rmtree(run / "tokenizer"), "toy/tokenizer: no such folder"),
        (break_weights, "damaged .its SHA-256 is not the one in model.json"),
        (cut_weights_unnoticed, "damaged"),
        (change_shape, r"does not fit the config: `.*` is 32.*, the config needs 48"),
    ],
)
def test_each_damage_is_a_clear_error(run: Path, damage: Any, message: str) -> None:
    damage(run)
    with pytest.raises(RunError, match=message) as caught:
        load_translator(run, device="cpu")
    assert str(run) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_names_the_nearest(run: Path) -> None:
    with pytest.raises(RunError, match="no such run folder; did you mean `toy`"):
        load_translator(run.parent / "toys")
    with pytest.raises(RunError, match="is a file, a run folder was expected"):
        load_translator(run / "config.yaml")


def test_only_decoding_can_be_overridden(run: Path) -> None:
    with pytest.raises(ConfigError, match="model.heads"):
        load_translator(run, overrides=["model.heads=4"])
    with pytest.raises(ConfigError, match=r"decoding.bean"):
        load_translator(run, overrides=["decoding.bean=4"])


def test_translating_needs_neither_datasets_nor_training() -> None:
    program = (
        "import sys, mt.decoding.load; bad = [name for name in sys.modules if "
        "name.partition('.')[0] in {'datasets', 'sacrebleu', 'typer'} or "
        "name.startswith(('mt.training', 'mt.evaluation'))]; sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
