"""Small objects for tests: configs, models, learners, pairs."""

import importlib.util
import io
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import sentencepiece
import torch
from hypothesis import strategies as st

from mt.config import Config, ModelConfig, TokenizerConfig
from mt.config.loading import load_config
from mt.data.pairs import PairSource, SentencePair
from mt.data.store import Example
from mt.data.tokenizer import Tokenizer, Vocabulary
from mt.data.tokenizer_training import TokenizerText, provide_tokenizer
from mt.decoding.load import FinishedRun, read_run
from mt.decoding.translator import Translator
from mt.export.export import ExportOptions, ExportResult, Proof, export_ctranslate2
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS, PAD, UNK
from mt.training.data import TrainingData, prepare
from mt.training.initial_weights import load_initial_weights, read_initial_run
from mt.training.optimizer import build_optimizer, choose_precision
from mt.training.run_folder import RunFolder
from mt.training.step import Learner, TrainingPass

CPU = torch.device("cpu")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
RECIPE = """\
data:
  source_language: en
  target_language: de
  train: {corpus: c/train}
  valid: {corpus: c/valid}
training:
  max_updates: 100
"""
"""A valid config as YAML; its corpora do not exist."""
_ODD = "▁\U000f2581_= \t\r\0\u2028\u0085\u3000，e\u0301é<>/s\u2585⁇\ufffd🇨🇭"
_LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))
LINES_OF_TEXT = _LINE | st.text(st.sampled_from(_ODD))
"""Any lines, and lines of characters that tokenizers treat specially."""
Program = Callable[..., tuple[int, str, str]]
Refused = Callable[..., str]
"""Types of the fixtures `program` and `refused`."""


def model_config(**keys: Any) -> ModelConfig:
    """Return the config of a tiny model; `keys` override its values."""
    small = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    return ModelConfig.model_validate({**small, "dropout": 0.0, **keys})


def config(**sections: dict[str, Any]) -> Config:
    """Return a valid config of a tiny model; each of `sections` overrides keys of that section."""
    side = {"format": "text", "source": "a.en", "target": "a.de"}
    usual: dict[str, dict[str, Any]] = {
        "data": {"source_language": "en", "target_language": "de", "train": side, "valid": side},
        "model": model_config().model_dump(exclude_unset=True),
        "training": {"max_updates": 1, "device": "cpu", "export": "off"},
    }
    merged = {name: {**usual.get(name, {}), **keys} for name, keys in sections.items()}
    return Config.model_validate({**usual, **merged})


def transformer(*, vocabulary: int = 20, seed: int = 1, **keys: Any) -> Transformer:
    """Return a tiny model with random weights; `keys` override those of its config."""
    torch.manual_seed(seed)
    return Transformer(
        model_config(**keys), source_vocabulary=vocabulary, target_vocabulary=vocabulary
    )


def unsettle(model: Transformer) -> Transformer:
    """Move biases and gains off their initial values."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    return model


def learner(
    model: Transformer | None = None,
    *,
    precision: str = "fp32",
    clip: float = 1.0,
    device: torch.device = CPU,
) -> Learner:
    """Return a learner for a model, by default a new `transformer()`."""
    model = (transformer() if model is None else model).to(device)
    return Learner(
        model=model,
        training_pass=TrainingPass(model, label_smoothing=0.1),
        optimizer=build_optimizer(model, device),
        precision=choose_precision(precision, device),
        gradient_clip=clip,
    )


def examples(count: int = 24, *, vocabulary: int = 20, seed: int = 5) -> list[Example]:
    """Return encoded pairs of 2 to 9 tokens whose target is the source reversed."""
    random = np.random.default_rng(seed)
    made = []
    for index in range(count):
        tokens = random.integers(4, vocabulary, random.integers(1, 9))
        sides = (np.append(side, EOS).astype(np.int32) for side in (tokens, tokens[::-1]))
        made.append(Example(index, *sides))
    return made


def counted(corpus: PairSource) -> tuple[int, int]:
    """Read a corpus; return the number of its pairs and the peak of the memory in bytes."""
    tracemalloc.start()
    try:
        count = sum(1 for _ in corpus.pairs())
        return count, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def run_process(*words: object, **options: Any) -> str:
    """Run a program that must succeed, and return its output."""
    command = [*map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def load_script(path: Path) -> ModuleType:
    """Import a Python file that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up here
    spec.loader.exec_module(module)
    return module


def model_of(run: FinishedRun) -> Transformer:
    """Return the model of a finished run, in eval mode."""
    model = Transformer(
        run.config.model,
        source_vocabulary=run.tokenizer.source_size,
        target_vocabulary=run.tokenizer.target_size,
    )
    model.load_state_dict(run.weights, strict=False)
    return model.eval()


def engine_translations(folder: Path, lines: list[str], overrides: Sequence[str] = ()) -> list[str]:
    """Translate with the engine of a run alone, which keeps repetition loops."""
    run = read_run(folder, overrides=overrides)
    engine = Translator.load(folder, overrides=overrides).engine
    found = engine.translate_ids(run.tokenizer.encode_source(lines), run.config.decoding)
    return [run.tokenizer.decode_target(hypothesis.ids) for hypothesis in found]


def export_run(
    run: Path,
    output: Path,
    options: ExportOptions,
    export_model: Callable[..., ExportResult] = export_ctranslate2,
) -> ExportResult:
    """Export the model of a run folder as `mt export` does."""
    proof = Proof.read(read_run(run), options)
    return export_model(proof.run, output, proof, options)


def check_initial_run(config: Config, run: Path) -> FinishedRun:
    """Read a run from which a config is to begin."""
    tags, init_tags = config.tokenizer.tags, config.training.init_tags
    return read_initial_run(run, config.model, tags=tags, init_tags=init_tags)


def load_weights_of_run(model: Transformer, config: Config, tokenizer: Tokenizer) -> list[str]:
    """Copy the weights of the run that `training.init_from` names into a model."""
    assert config.training.init_from is not None
    run = check_initial_run(config, config.training.init_from)
    return load_initial_weights(model, run, config.training.init_tags, tokenizer)


def prepare_run(recipe: Path, run: Path, *settings: str) -> tuple[Config, TrainingData]:
    """Prepare the corpora of a recipe in a run folder."""
    run.mkdir(exist_ok=True)
    config = load_config(recipe, overrides=settings)
    return config, prepare(config, RunFolder(run))


def train_with(recipe: Path, run: Path, *settings: str) -> str:
    """Train with changed keys, those of `training` without a dot, and return the result."""
    from mt.training.trainer import train

    changes = [each if "." in each.partition("=")[0] else f"training.{each}" for each in settings]
    return train(load_config(recipe, overrides=changes), run)


def journal(run: Path, event: str) -> list[dict[str, Any]]:
    """Return the whole lines of a run's journal with this event."""
    text = (run / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [line for line in lines if line["event"] == event]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip_bit(path: Path, place: int = -1) -> None:
    """Damage one byte of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def extend_tokenizer(
    origin: Path, folder: Path, pairs: Sequence[SentencePair], settings: TokenizerConfig
) -> Tokenizer:
    """Copy a tokenizer, with the new tokens and tags of the settings, learnt from all pairs."""
    old = Tokenizer.load(origin / "tokenizer" if (origin / "tokenizer").is_dir() else origin)
    text = TokenizerText(old=(old.source, old.target))
    text.add(pairs, ("en", "de"))
    return provide_tokenizer(settings, folder, origin=("tokenizer.from", origin), text=text)


def foreign_vocabulary(lines: Sequence[str], size: int, **options: Any) -> Vocabulary:
    """Train a vocabulary as others do: unseen characters are unknown, text may be normalized."""
    model = io.BytesIO()
    settings: dict[str, Any] = {
        "model_type": "bpe",
        "hard_vocab_limit": False,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "minloglevel": 2,
    }
    ids = {"pad_id": PAD, "unk_id": UNK, "bos_id": BOS, "eos_id": EOS}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=size,
        **{**settings, **ids, **options},
    )
    return Vocabulary.from_model(model.getvalue())
