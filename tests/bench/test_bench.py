"""The scripts in bench/ run on tiny settings and print the tables that they promise."""

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mt.config.loading import load_config
from mt.data.tokenizer import Tokenizer

BENCH = Path(__file__).parents[2] / "bench"
WORDS = ("red", "green", "blue", "white", "black", "grey", "pink", "brown")
RECIPE = """\
data:
  source_language: en
  target_language: de
  train: {{source: {0}/train.en, target: {0}/train.de}}
  valid: {{source: {0}/valid.en, target: {0}/valid.de}}
tokenizer: {{vocabulary_size: 300}}
"""
TINY = (
    *("data.max_tokens=12", "model.d_model=16", "model.d_ff=32", "model.heads=2"),
    *("model.encoder_layers=1", "model.decoder_layers=1", "training.device=cpu"),
    *("training.max_updates=2", "training.validate_every=2", "training.max_tokens_per_batch=400"),
    *("training.target_tokens_per_update=50", "decoding.max_length_extra=3"),
)
KINDS = ("none", "learned")


def tables(text: str) -> list[list[list[str]]]:
    """Return the cells of each Markdown table, without the line under its header."""
    found: list[list[list[str]]] = []
    previous = ""
    for line in text.splitlines():
        if line.startswith("| ") and not previous.startswith("|"):
            found.append([])
        if line.startswith("| ") and not line.startswith("| ---"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        previous = line
    return found


def test_lengths(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = script("lengths")
    monkeypatch.setattr(module, "POSITIONS_A_ROUND", 1)
    picture = tmp_path / "cost.svg"
    arguments = ["--lengths", "64", "32", "--rounds", "2", "--device", "cpu", "-o", str(picture)]
    assert module.main(arguments) == 0
    found = tables(capsys.readouterr().out)
    assert len(found) == 4
    parts = ["feed-forward"]
    parts += [f"attention, {kind}" for kind in module.KINDS]
    parts += [f"core, {kind}" for kind in module.KINDS]
    parts += ["bias, alibi", "bias, relative_bias"]
    for table in found:
        assert table[0] == ["part", "32", "64"]
        assert [row[0] for row in table[1:]] == parts
        assert all(float(cell) > 0 for row in table[1:] for cell in row[1:])
    # Inner states before and after ReLU: 2 x 2,048 floats of 4 bytes a position.
    assert dict(zip(found[1][0], found[1][1], strict=True)) == {
        "part": "feed-forward",
        "32": "0.50",
        "64": "1.0",
    }
    assert picture.read_bytes().startswith(b"<?xml")


def test_the_peak_is_what_is_held_at_once(script: Callable[[str], ModuleType]) -> None:
    module = script("lengths")
    changes = [{"args": {"Bytes": size}} for size in (40, 40, -40, 20, -40, 50)]
    assert module._peak(changes) == 80


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Return a folder of colours, 2 to 20 words a line, and the same words backwards."""
    pick = random.Random(1)
    for split, longest, lines in (("train", 20, 300), ("valid", 8, 40)):
        words = [pick.choices(WORDS, k=pick.randint(2, longest)) for _ in range(lines)]
        for side, step in (("en", 1), ("de", -1)):
            text = "".join(f"{' '.join(line[::step])}\n" for line in words)
            (tmp_path / f"{split}.{side}").write_text(text, encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(tmp_path), encoding="utf-8")
    return tmp_path


def run_length_generalisation(module: ModuleType, corpus: Path, *more: str) -> Any:
    arguments = ["--config", str(corpus / "recipe.yaml"), "--runs", str(corpus / "runs")]
    arguments += ["--kinds", *KINDS, "--ends", "16", "24", "--pairs", "10", *more]
    return module.main([*arguments, *(f"--set={override}" for override in TINY)])


def test_length_generalisation(
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = script("length_generalisation")
    picture = corpus / "picture.svg"
    assert run_length_generalisation(module, corpus, "-o", str(picture)) == 0
    loss, bleu, length = tables(capsys.readouterr().out)
    for table in (loss, bleu, length):
        assert table[0] == ["positional", "1-12", "13-16", "17-24"]
        assert [row[0] for row in table[1:]] == [*KINDS, "control", "pairs"]
        assert table[-1][1:] == ["10", "10", "10"]
    assert all(3 < float(cell) < 9 for row in loss[1:-1] for cell in row[1:])
    assert all(0 <= float(cell) <= 100 for row in bleu[1:-1] for cell in row[1:])
    assert all(0 < float(cell) < 5 for row in length[1:-1] for cell in row[1:])
    assert picture.read_bytes().startswith(b"<?xml")
    limits = [_max_tokens(corpus / "runs" / f"lengths-{run}") for run in (*KINDS, "control")]
    assert limits == [12, 12, 256]

    config = load_config(corpus / "runs" / "lengths-none" / "config.yaml")
    tokenizer = Tokenizer.load(corpus / "runs" / "lengths-none" / "tokenizer")
    buckets = module.make_buckets(config, tokenizer, ends=(16, 24), most=10)
    trained = {*zip(*(_lines(corpus, "train", side) for side in ("en", "de")), strict=True)}
    for bucket in buckets:
        sides = [
            tokenizer.encode_source([p.source]) + tokenizer.encode_target([p.target])
            for p in bucket.pairs
        ]
        longer = [max(map(len, pair)) for pair in sides]
        assert bucket.first <= min(longer)
        assert max(longer) <= bucket.last
        found = {(pair.source, pair.target) for pair in bucket.pairs}
        assert found <= trained or bucket.first == 1
    translator = module._whole_lines(corpus / "runs" / "lengths-none", config)
    longest = [pair.source for pair in buckets[-1].pairs]
    assert {len(each.alternatives[0].parts) for each in translator.stream(longest)} == {1}


def test_a_kind_that_there_is_not(
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = script("length_generalisation")
    with pytest.raises(SystemExit, match="2"):
        module.main(["--kinds", "rotry"])
    assert "`rotry` is unknown; did you mean `rotary`?" in capsys.readouterr().err


def _lines(corpus: Path, split: str, side: str) -> list[str]:
    return (corpus / f"{split}.{side}").read_text(encoding="utf-8").splitlines()


def _max_tokens(run: Path) -> int:
    return load_config(run / "config.yaml").data.max_tokens
