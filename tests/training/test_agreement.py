"""What a rank checks before it trains with others; what they compare is in test_distributed.py."""

from pathlib import Path

import pytest
import torch

from mt.config import ModelConfig
from mt.config.loading import load_config
from mt.errors import RunError
from mt.model.transformer import Transformer
from mt.training.distributed import World
from mt.training.optimizer import build_optimizer, choose_precision
from mt.training.run_folder import RunFolder
from mt.training.setup import agree_on_folder, weights_sha256
from mt.training.step import Learner, TrainingPass

CPU = torch.device("cpu")


def test_a_rank_that_does_not_see_the_run_of_rank_0_says_so(
    tiny_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    config = load_config(tiny_recipe)
    second = World(rank=1, size=2)
    agree_on_folder(second, config, RunFolder(finished_run))
    agree_on_folder(World(), config, RunFolder(tmp_path / "elsewhere"))
    other = load_config(tiny_recipe, overrides=["training.learning_rate=0.5"])
    for known, folder in ((config, tmp_path / "elsewhere"), (other, finished_run)):
        with pytest.raises(RunError, match=r": rank 1 on host .* does not find the run of rank 0"):
            agree_on_folder(second, known, RunFolder(folder))


def test_the_hash_of_the_weights_is_of_every_bit() -> None:
    config = ModelConfig(d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)
    torch.manual_seed(1)
    model = Transformer(config, source_vocabulary=9, target_vocabulary=9)
    precision, optimizer = choose_precision("fp32", CPU), build_optimizer(model, CPU)
    learner = Learner(model, TrainingPass(model, 0.0), optimizer, precision, 0.0)
    before = weights_sha256(learner)
    assert weights_sha256(learner) == before
    last = [*model.parameters()][-1].detach().view(-1)
    value = float(last[-1])
    last[-1] = torch.nextafter(last[-1], torch.tensor(9.0))
    assert weights_sha256(learner) != before
    last[-1] = value
    assert weights_sha256(learner) == before
