"""Fixtures of all tests: the same state for each, no network, and a tiny finished run."""

import io
import os
import random
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

# `datasets` and the hub read these on import; subprocesses inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

_FOREIGN_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "COLUMNS",
    "NO_COLOR",
    "FORCE_COLOR",
    "GITHUB_ACTIONS",
    "PY_COLORS",
)
"""Variables of the shell that would change test results."""
# Typer reads this on import: help in color would break tests on GitHub Actions.
os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"

# A forked process can hang in its backward pass unless its parent has run one before.
torch.zeros(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests on a GPU pass with warnings of CUDA's libraries, which depend on the machine."""
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.filterwarnings("default::UserWarning"))


@pytest.fixture(autouse=True)
def _same_state(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in _FOREIGN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def _same_numbers() -> Iterator[None]:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    yield
    if torch.are_deterministic_algorithms_enabled():  # the setter is slow
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow connections to this machine only, except for tests marked `network`."""
    if request.node.get_closest_marker("network"):
        return
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else "localhost"
        if host not in {"localhost", "127.0.0.1", "::1"}:
            raise AssertionError(f"a test without the marker `network` connected to {host}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture
def corpora() -> Path:
    """Return the folder of the real corpora, or skip the test."""
    folder = Path(os.environ.get("MT_CORPORA", ""))
    if not os.environ.get("MT_CORPORA") or not folder.is_dir():
        pytest.skip("$MT_CORPORA names no folder of corpora")
    return folder


DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TINY = """\
seed: 4
data:
  source_language: en
  target_language: de
  train: {{source: {0}/train.en, target: {0}/train.de}}
  valid: {{source: {0}/valid.en, target: {0}/valid.de}}
  tests:
    test: {{source: {0}/test.en, target: {0}/test.de}}
  max_tokens: 40
tokenizer: {{algorithm: bpe, vocabulary: joint, vocabulary_size: 300}}
model:
  {{d_model: 32, d_ff: 64, heads: 2, encoder_layers: 1, decoder_layers: 1, dropout: 0.1,
  positional: sinusoidal, residual: post, feed_forward: relu, tie_embeddings: all}}
training:
  max_updates: 40
  target_tokens_per_update: 150
  max_tokens_per_batch: 200
  learning_rate: 1.0e-2
  schedule: inverse_sqrt
  warmup_updates: 10
  average: best
  validate_every: 10
  best_metric: loss
  keep_best: 2
  keep_last: 2
  device: cpu
  export: off
decoding: {{beam: 2, max_length_extra: 10}}
"""


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with numbers spelled digit by digit, and reversed as target side."""
    folder = tmp_path_factory.mktemp("corpus")
    for split, numbers in (
        ("train", range(1000, 10000, 151)),
        ("valid", range(1111, 9999, 1481)),
        ("test", range(1234, 9999, 1733)),
    ):
        spelled = [[DIGITS[int(digit)] for digit in str(number)] for number in numbers]
        for side, step in (("en", 1), ("de", -1)):
            lines = [" ".join(words[::step]) for words in spelled]
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{side}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_recipe(tiny_corpus: Path) -> Path:
    """Return a recipe that trains on the tiny corpus in about a second."""
    path = tiny_corpus / "tiny.yaml"
    path.write_text(TINY.format(tiny_corpus), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def finished_run(tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run of the tiny recipe; tests must not change it."""
    from mt.config.loading import load_config
    from mt.training.trainer import train

    run = tmp_path_factory.mktemp("runs") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        torch.set_num_threads(1)
        train(load_config(tiny_recipe), run)
    return run


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """Return a copy of the finished run without its checkpoints."""
    without = shutil.ignore_patterns("checkpoints")
    return Path(shutil.copytree(finished_run, tmp_path / "run", ignore=without))


@pytest.fixture(scope="session")
def exported_run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the finished run as `mt export --to ctranslate2` writes it; for reading alone."""
    from mt.export.export import ExportOptions
    from tests.factories import export_run

    output = tmp_path_factory.mktemp("exports") / "ct2"
    assert export_run(finished_run, output, ExportOptions(device="cpu")).failure is None
    return output


@pytest.fixture
def program(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs `mt` in this process and returns status, stdout and stderr."""
    from mt.__main__ import main

    def run(*arguments: str | Path, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mt", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # Typer changes it
        try:
            status = main()
        except SystemExit as leaving:
            status = int(str(leaving.code))
        out, err = capfdbinary.readouterr()
        return status, out.decode(), err.decode()

    return run


@pytest.fixture
def refused(program: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Return a function that runs `mt`, expects one `error:` line, and returns its message."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> str:
        status, out, err = program(*arguments, stdin=stdin)
        assert (status, out) == (2, "")
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err.removeprefix("error: ").rstrip("\n")

    return run
