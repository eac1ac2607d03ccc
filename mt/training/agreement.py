"""Agreement of the ranks: the same config, run folder, data and weights everywhere."""

import hashlib

import torch

from mt import __version__
from mt.config import Config
from mt.config.loading import load_config
from mt.errors import RunError
from mt.model.weights import parameter_tensors
from mt.training.data import TrainingData
from mt.training.distributed import World
from mt.training.run_folder import RunFolder, flat
from mt.training.state import TrainState
from mt.training.step import Learner


def agree_on_config(world: World, config: Config) -> None:
    """Raise UserError if the ranks have different configs or versions of mt or torch."""
    keys = flat(config.model_dump(mode="json"))
    versions = {"mt": __version__, "torch": torch.__version__}
    world.agree({**versions, **{f"`{key}`": str(value) for key, value in keys.items()}})


def agree_on_folder(world: World, config: Config, folder: RunFolder) -> None:
    """Raise RunError if this rank does not see the run folder that rank 0 has opened."""
    if world.size > 1 and not (folder.config.exists() and load_config(folder.config) == config):
        raise RunError(
            f"{folder.path}: the run of rank 0 is not there; put the run folder on a disk that all "
            "hosts share"
        )


def agree_on_start(world: World, corpus: TrainingData, learner: Learner, state: TrainState) -> None:
    """Raise UserError if the ranks begin with different data, weights or updates."""
    if world.size > 1:
        world.agree(
            {
                "the tokenizer": corpus.tokenizer.fingerprint,
                "the number of training pairs": str(len(corpus.store)),
                "the update to go on from": str(state.update),
                "the hash of the weights": weights_sha256(learner),
            }
        )


def weights_sha256(learner: Learner) -> str:
    """Return the SHA-256 of all weights, in hexadecimal."""
    digest = hashlib.sha256()
    for name, tensor in parameter_tensors(learner.model).items():
        digest.update(name.encode())
        digest.update(memoryview(tensor.contiguous().view(torch.uint8).numpy()))  # type: ignore[arg-type]
    return digest.hexdigest()
