import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file

from mt.config import Config, TokenizerConfig
from mt.config.load import dump_config
from mt.data.pairs import SentencePair
from mt.data.tokenizer import train_tokenizer
from mt.decoding import line_files
from mt.decoding import run as decoding_run
from mt.decoding.run import TranslatedLines, load_translator, translate_file
from mt.errors import ConfigError, DataError, RunError, UserError
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


def feed(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


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


def test_stdin_to_stdout_every_line_answered_and_odd_ones_told(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd = "\ufeffthe cat\r\n\n \n".encode() + b"dog \xff\n" + "a\u2028b\u0085c\x0b\rd".encode()
    feed(monkeypatch, odd)
    counted = translate_file(run, device="cpu")
    assert counted == TranslatedLines(lines=5, blank=2, split=0)
    out, err = capsysbinary.readouterr()
    lines = out.decode("utf-8").split("\n")
    assert len(lines) == 6
    assert lines[-1] == ""
    assert [bool(line) for line in lines[:3]] == [True, False, False]
    assert b"\r" not in out
    assert "line 4: bytes that are not UTF-8 are read as U+FFFD" in caplog.messages
    assert err == b"", "no progress bar without a terminal"
    translator = load_translator(run, device="cpu")
    wanted = translator.translate(["the cat", "", " ", "dog \ufffd", "a\u2028b\u0085c\x0b\rd"])
    assert lines[:5] == wanted


def test_file_to_file(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(b"the dog\n" * 3 + b"the cat sees a bird\xff" * 20 + b"\nlast")
    output.write_text("old\n")
    counted = translate_file(run, input=source, output=output, device="cpu")
    assert counted == TranslatedLines(lines=5, blank=0, split=1)
    lines = output.read_bytes().decode("utf-8").split("\n")
    assert len(lines) == 6
    assert lines[0] == lines[1] == lines[2] != ""
    assert any(message.startswith("line 4: ") for message in caplog.messages)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt", "toy"]


def test_a_failure_leaves_the_old_output_and_no_other_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("the dog\n")
    output.write_text("old\n")
    weights = load_file(run / "model.safetensors")
    weights["target_embedding.weight"][7] = float("nan")
    save_file(weights, run / "model.safetensors")
    describe(run, weights=file_sha256(run / "model.safetensors"))
    with pytest.raises(UserError, match="not finite"):
        translate_file(run, input=source, output=output, device="cpu")
    assert output.read_text() == "old\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt", "toy"]


def test_input_and_output_are_looked_at_before_the_model_loads(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_early(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(decoding_run, "load_translator", too_early)
    there = tmp_path / "text.en"
    there.write_text("a\n")
    with pytest.raises(DataError, match=r"did you mean `text.en`"):
        translate_file(run, input=tmp_path / "txt.en")
    with pytest.raises(UserError, match="there is no folder"):
        translate_file(run, input=there, output=tmp_path / "no" / "out")
    with pytest.raises(UserError, match="is a folder, a file was expected"):
        translate_file(run, input=there, output=tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="no permission to write there"):
        translate_file(run, input=there, output=tmp_path / "out")


def test_a_link_stays_a_link_and_a_device_is_written_to(run: Path, tmp_path: Path) -> None:
    source, real, link = tmp_path / "in", tmp_path / "real", tmp_path / "link"
    source.write_text("dog\n")
    real.write_text("old\n")
    link.symlink_to(real)
    translate_file(run, input=source, output=link, device="cpu")
    assert link.is_symlink()
    assert real.read_text() != "old\n"
    translate_file(run, input=source, output=Path(os.devnull), device="cpu")
    assert not Path(os.devnull).is_file()


def test_lines_come_out_of_a_pipe_as_soon_as_they_are_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        pipe.write(b"first\r\nsec")
        lines = line_files.stdin_lines()
        assert next(lines) == "first"
        pipe.write(b"ond\n")
        assert next(lines) == "second"
        pipe.close()
        assert list(lines) == []


def test_the_progress_bar_is_shown_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in"
    source.write_text("a\nb\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with line_files.progress_bar(source) as bar:
        bar.update()
    assert "1/2" in capsys.readouterr().err


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
        (change_shape, r"does not fit the config: `.*` is 32.*, the config wants 48"),
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
        "import sys, mt.decoding.run; bad = [name for name in sys.modules if "
        "name.partition('.')[0] in {'datasets', 'sacrebleu', 'typer'} or "
        "name.startswith(('mt.training', 'mt.evaluation'))]; sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
