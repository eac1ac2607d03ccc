"""Command `mt inspect`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt.config import ModelConfig
from mt.profiling.cost import PairLengths, model_cost
from tests.factories import Program

SETTINGS = """\
tokenizer: {vocabulary_size: 1000}
model: {d_model: 100, d_ff: 200, heads: 4, encoder_layers: 2, decoder_layers: 1, positional: alibi}
"""

TABLE = """\
tiny.yaml
25 source and 25 target tokens, end marks included
a joint vocabulary of 1,000 tokens

part                     parameters   share  MFLOPs   share
shared embedding            100,000   26.0%    0.00    0.0%
encoder positions                 0    0.0%    0.00    0.0%
encoder self-attention       80,800   21.0%    4.50   22.5%
encoder feed-forward         80,600   21.0%    4.00   20.0%
encoder norms                   800    0.2%    0.00    0.0%
decoder positions                 0    0.0%    0.00    0.0%
decoder self-attention       40,400   10.5%    2.25   11.2%
decoder cross-attention      40,400   10.5%    2.25   11.2%
decoder feed-forward         40,300   10.5%    2.00   10.0%
decoder norms                   600    0.2%    0.00    0.0%
output layer                      0    0.0%    5.00   25.0%
total                       383,900  100.0%   20.00  100.0%

one target token, forward                  0.80  MFLOPs
one target token, training                 2.40  MFLOPs
decoding token 25 of a row with a cache    0.42  MFLOPs
weights in fp32                             1.5  MiB
keys and values per token and row in fp32   800  bytes

FLOPs count matrix products only, two per multiply-add. The table shows the
forward pass; training takes three times as many.
Both embeddings and the output layer share one matrix, counted as the embedding.
Counted by their defaults; training may choose other values:
tokenizer.algorithm, tokenizer.vocabulary, tokenizer.character_coverage,
model.decoder_start, model.residual, model.feed_forward, model.dropout,
model.tie_embeddings
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def inspected(recipe: Path, program: Program) -> Run:
    """Return a function that runs `mt inspect tiny.yaml` with further arguments."""
    recipe.write_text(recipe.read_text() + SETTINGS)
    return lambda *arguments: program("inspect", recipe, *arguments)


def record(inspected: Run, *arguments: str) -> dict[str, Any]:
    status, out, err = inspected("--json", *arguments)
    assert (status, err) == (0, "")
    loaded: dict[str, Any] = json.loads(out)
    return loaded


def test_table_needs_no_corpus(inspected: Run) -> None:
    # Every number of these sizes can be checked by hand.
    assert inspected() == (0, TABLE, "")


def test_wide_model_and_long_pair_fit_80_columns(inspected: Run) -> None:
    wide = ["d_model=4096", "d_ff=16384", "heads=32", "encoder_layers=12", "decoder_layers=12"]
    settings = [argument for value in wide for argument in ("--set", f"model.{value}")]
    lengths = ["--source-length", "1000", "--target-length", "1000"]
    status, out, _ = inspected(*settings, *lengths, "--set", "tokenizer.vocabulary_size=64000")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80


def test_json_has_every_count(inspected: Run) -> None:
    shape = {"d_model": 100, "d_ff": 200, "heads": 4, "encoder_layers": 2, "decoder_layers": 1}
    config = ModelConfig.model_validate({**shape, "positional": "alibi", "kv_heads": 2})
    lengths = PairLengths(source=7, target=9)
    cost = model_cost(config, lengths, source_vocabulary=1000, target_vocabulary=1000)
    arguments = ["--set", "model.kv_heads=2", "--source-length", "7", "--target-length", "9"]
    got = record(inspected, *arguments)
    assert got.pop("parts") == [vars(part) for part in cost.parts]
    assert got == {
        "vocabulary": "joint",
        "vocabulary_size": 1000,
        "tie_embeddings": "all",
        "source_length": 7,
        "target_length": 9,
        "parameters": cost.parameters,
        "flops": cost.flops,
        "flops_per_target_token": cost.flops / 9,
        "training_flops_per_target_token": pytest.approx(3 * cost.flops / 9),
        "step_flops": cost.step_flops,
        "weight_bytes": 4 * cost.parameters,
        "cache_bytes_per_token": 4 * 2 * (25 + 25),
    }


def test_separate_vocabularies_have_two_embeddings(inspected: Run) -> None:
    apart = ["--set", "tokenizer.vocabulary=separate", "--set", "model.tie_embeddings=decoder"]
    parts = {part["name"]: part["parameters"] for part in record(inspected, *apart)["parts"]}
    assert parts["source embedding"] == parts["target embedding"] == 100_000
    assert parts["output layer"] == 0
    _, out, _ = inspected(*apart)
    assert "two vocabularies of 1,000 tokens\n" in out
    assert "The output layer shares the matrix of the target embedding, counted there.\n" in out


def test_notes_mention_ties_and_copied_tokenizers(inspected: Run) -> None:
    _, out, _ = inspected("--set", "model.tie_embeddings=none")
    assert "counted" not in out
    assert "tokenizer.from" not in out
    _, out, _ = inspected("--set", "tokenizer.from=runs/other")
    assert "`tokenizer.from` may have a different size" in out


def test_keys_that_training_chooses_are_named(recipe: Path, program: Program) -> None:
    _, out, _ = program("inspect", recipe, "--set", "model.d_model=auto")
    assert "training may choose other values" in out
    assert "model.d_model" in out
