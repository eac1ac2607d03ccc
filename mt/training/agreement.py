"""What has to be equal on all ranks before they train together."""

import hashlib
import platform

import torch

from mt import __version__
from mt.config import Config
from mt.config.load import load_config
from mt.errors import RunError
from mt.model.parameters import parameter_tensors
from mt.training.corpus import Corpus
from mt.training.distributed import World
from mt.training.run_folder import RunFolder, flat
from mt.training.state import TrainState
from mt.training.update import Learner


def agree_on_config(world: World, config: Config) -> None:
    """Make sure that all ranks were started with one config and one version of the programs."""
    if world.size == 1:
        return
    keys = flat(config.model_dump(mode="json"))
    world.agree({"mt": __version__, "torch": torch.__version__})
    world.agree({f"`{key}`": str(value) for key, value in keys.items()})


def agree_on_folder(world: World, config: Config, folder: RunFolder) -> None:
    """Make sure that all ranks see the run folder in which rank 0 has just begun."""
    if world.size == 1:
        return
    if not folder.config.exists() or load_config(folder.config) != config:
        raise RunError(
            f"{folder.path}: rank {world.rank} on host {platform.node()} does not find the run of "
            "rank 0 there; the run folder has to be on a disk that all hosts share"
        )


def agree_on_start(world: World, corpus: Corpus, learner: Learner, state: TrainState) -> None:
    """Make sure that all ranks begin with the same data, weights and update."""
    if world.size == 1:
        return
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
        digest.update(memoryview(tensor.contiguous().numpy()))  # type: ignore[arg-type]
    return digest.hexdigest()
