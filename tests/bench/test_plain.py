"""The baseline of `make bench` is the model that mt trains, on the same sentences."""

import json
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from mt.config import Config
from mt.config.loading import load_config
from mt.data.batches import collate, plan_updates
from mt.data.corpora import cache_folder
from mt.data.sources import open_source
from mt.data.store import Example, PairStore, prepare_store
from mt.data.tokenizer import train_tokenizer
from mt.errors import UserError
from mt.model.transformer import Transformer
from mt.special_ids import EOS
from mt.training.step import TrainingPass

PLAIN = Path(__file__).parents[2] / "bench" / "plain.py"
SHAPE = ("model.encoder_layers=2", "model.decoder_layers=3", "model.dropout=0.0")
ATTENTIONS = {"self_attention": 0, "cross_attention": 1}
NORMS = {"self_residual": 0, "cross_residual": 1, "feed_forward_residual": -1}


@pytest.fixture
def plain(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("plain")


@pytest.fixture
def config(tiny_recipe: Path) -> Config:
    return load_config(tiny_recipe)


def stored(config: Config, folder: Path) -> PairStore:
    pairs = open_source(config.data.train, config.data)
    tokenizer = train_tokenizer(pairs.pairs, folder, config=config.tokenizer, seed=config.seed)
    return prepare_store(pairs, tokenizer, max_tokens=config.data.max_tokens, cache=cache_folder())


def plain_weights(model: Transformer) -> dict[str, Tensor]:
    """Return mt's parameters under the names that they have in the plain model."""
    found: dict[str, Tensor] = {}
    for name, tensor in model.named_parameters():
        stack, _, rest = name.partition(".")
        if stack not in {"encoder", "decoder"}:
            found[name.replace("target_embedding", "embedding")] = tensor
            continue
        number, part, *tail = rest.split(".")
        if part in ATTENTIONS:
            place = f"attentions.{ATTENTIONS[part]}.{'.'.join(tail[-2:])}"
        elif part in NORMS:
            place = f"norms.{NORMS[part] % (2 if stack == 'encoder' else 3)}.{tail[-1]}"
        else:
            place = f"feed_forward.{ {'inner': 0, 'outer': 2}[tail[0]] }.{tail[1]}"
        found[f"{stack}.{number}.{place}"] = tensor
    return found


def ragged_examples(vocabulary: int) -> list[Example]:
    """Return pairs of 2 to 9 tokens a side, so that a batch of them has padding on both."""
    random = np.random.default_rng(1)
    sides = [
        [np.append(random.integers(4, vocabulary, n), EOS).astype(np.int32) for n in lengths]
        for lengths in random.integers(1, 9, (2, 7))
    ]
    return [Example(i, *pair) for i, pair in enumerate(zip(*sides, strict=True))]


def test_its_loss_and_gradients_are_those_of_mt(plain: ModuleType, tiny_recipe: Path) -> None:
    config = load_config(tiny_recipe, overrides=SHAPE).model
    mt_model = Transformer(config, source_vocabulary=50, target_vocabulary=50)
    plain_model = plain.Transformer(config, 50, 9)
    renamed = plain_weights(mt_model)
    assert renamed.keys() == dict(plain_model.named_parameters()).keys()
    plain_model.load_state_dict(renamed, strict=False)

    examples = ragged_examples(50)
    batch = collate(examples)
    assert batch.target_tokens < batch.target_out.numel()
    assert batch.source_tokens < batch.source.numel()
    expected = TrainingPass(mt_model, 0.1)(batch).smoothed / batch.target_tokens
    loss = plain.batch_loss(plain_model, plain._padded(examples), 0.1) / batch.target_tokens
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    loss.backward()
    expected.backward()
    for name, parameter in plain_model.named_parameters():
        torch.testing.assert_close(parameter.grad, renamed[name].grad, atol=1e-5, rtol=1e-4)


def test_its_updates_are_those_of_mt(plain: ModuleType, config: Config, tmp_path: Path) -> None:
    store = stored(config, tmp_path)
    plans = [plan_updates(store.lengths, 150, seed=1, epoch=epoch) for epoch in (0, 1)]
    taken = list(islice(plain.updates(store, config), len(plans[0]) + len(plans[1])))
    for update, indices in zip(taken, plans[0] + plans[1], strict=True):
        for side, column in ((0, 0), (1, 1)):
            lengths = [n for batch in update for n in (batch[side] != 0).sum(1).tolist()]
            assert sorted(lengths) == sorted(store.lengths[indices, column].tolist())
            assert all(max(batch[side].shape) <= 200 for batch in update)


def test_what_it_counts_and_that_it_learns(
    plain: ModuleType, config: Config, tmp_path: Path
) -> None:
    store = stored(config, tmp_path)
    few, many = plain.run(config, 1, 2), plain.run(config, 20, 10)
    plan = plan_updates(store.lengths, 150, seed=1, epoch=0)
    for column, side in enumerate(("source", "target")):
        tokens = sum(int(store.lengths[indices, column].sum()) for indices in plan[1:3])
        assert few[f"{side}_tokens"] == tokens
        assert few[f"{side}_tokens_per_second"] == pytest.approx(tokens / few["wall_seconds"])
    assert (few["updates"], few["threads"]) == (2, 1)
    assert few["peak_rss_mib"] > 50
    assert 4 < few["loss"] < 7
    assert many["loss"] < few["loss"] - 1


@pytest.mark.parametrize("setting", ["model.norm=rmsnorm", "model.residual=pre"])
def test_it_has_no_other_model_than_the_paper_s(
    setting: str, plain: ModuleType, tiny_recipe: Path
) -> None:
    config = load_config(tiny_recipe, overrides=[setting])
    with pytest.raises(UserError, match=f"take out `{setting[6:].partition('=')[0]}`"):
        plain.run(config, 0, 1)


def test_the_program_prints_one_line_of_json(
    plain: ModuleType,
    tiny_recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [str(tiny_recipe), "--updates", "1", "--warmup", "0", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["plain.py", *arguments, "--set", "model.d_ff=16"])
    assert plain.main() == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out)["updates"] == 1
