"""The run folder: what it holds, and whether a config may go on in it."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from mt import __version__
from mt.config import Config
from mt.config.loading import dump_config, load_config
from mt.data.pairs import Checksums
from mt.errors import ConfigError, RunError
from mt.files import write_json, write_text
from mt.runs import (
    CONFIG_FILE,
    CORPORA_FILE,
    ENVIRONMENT_FILE,
    JOURNAL_FILE,
    MODEL_FILE,
    TOKENIZER_FOLDER,
    WEIGHTS_FILE,
)
from mt.training.checkpoint import Checkpoints

PACKAGES = ("torch", "numpy", "sentencepiece", "datasets", "pyarrow", "sacrebleu", "safetensors")


def environment(device: torch.device, precision: str) -> dict[str, object]:
    """Return versions, machine and arithmetic as plain data."""
    return {
        "mt": __version__,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "system": platform.platform(),
        "processor": processor_name(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device_name(device),
        "precision": precision,
    }


def device_name(device: torch.device) -> str:
    """Return a device with the name of its hardware."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    return device.type


def processor_name() -> str:
    """Return the processor's name, as well as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def peak_memory_mib() -> float | None:
    """Return the largest resident set of this process so far in MiB; None where unknown."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if platform.system() == "Darwin" else 2**10)


ENDS = ("training.max_updates", "training.max_epochs", "training.patience")
# These only say when to stop, how often to look, what to keep or what the hardware holds.
CHANGEABLE = (
    *ENDS,
    "data.check",
    "training.validate_every",
    "training.checkpoint_every",
    "training.log_every",
    "training.tensorboard",
    "training.keep_best",
    "training.keep_last",
    "training.max_tokens_per_batch",
    "training.on_divergence",
    "training.device",
    "training.compile",
    "decoding",
    "evaluation.expected",
    "evaluation.published",
    "evaluation.seed_band",
)


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.path / CONFIG_FILE

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's folder."""
        return self.path / TOKENIZER_FOLDER

    @property
    def model(self) -> Path:
        """What describes the final model; written last, so it marks a finished run."""
        return self.path / MODEL_FILE

    @property
    def weights(self) -> Path:
        """The final model's weights."""
        return self.path / WEIGHTS_FILE

    @property
    def metrics(self) -> Path:
        """The journal: a JSON object per line."""
        return self.path / JOURNAL_FILE

    @property
    def tensorboard(self) -> Path:
        """What TensorBoard shows of the journal, where the config asks for it."""
        return self.path / "tensorboard"

    @property
    def environment(self) -> Path:
        """What the run ran on."""
        return self.path / ENVIRONMENT_FILE

    @property
    def corpora(self) -> Path:
        """Checksums of corpora, tokenizer and initial weights at first use; what cleaning took."""
        return self.path / CORPORA_FILE

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints."""
        return Checkpoints(self.path / "checkpoints")

    def record_corpora(self, checksums: dict[str, dict[str, str]]) -> None:
        """Keep the corpora's checksums; a corpus that changed since the first use is an error."""
        known = self._known_checksums()
        for split, side in ((split, side) for split, sums in checksums.items() for side in sums):
            now = checksums[split][side]
            before = known.get(split, {}).get(side, now)
            if before != now:
                raise RunError(
                    f"{self.path}: the {side} side of `data.{split}` has changed since this run "
                    f"began (SHA-256 {before[:12]}... then, {now[:12]}... now); put the old file "
                    "back, or train a new run with --run"
                )
        write_json(self.corpora, {**known, **checksums})

    def record_tokenizer(self, fingerprint: str) -> None:
        """Keep the tokenizer's fingerprint; another one than at the first use is an error."""
        known = self._known_checksums()
        before = known.get("tokenizer", {}).get("fingerprint", fingerprint)
        if before != fingerprint:
            raise RunError(
                f"{self.tokenizer}: is the tokenizer of another run "
                f"(fingerprint {fingerprint[:12]}, this run began with {before[:12]})"
            )
        write_json(self.corpora, {**known, "tokenizer": {"fingerprint": fingerprint}})

    def record_cleaning(self, taken: dict[str, dict[str, int]]) -> None:
        """Keep how many pairs each key of `data.cleaning` has taken out of each corpus, or changed.

        By the key of the corpus below `data`; the file says `cleaning` for `train`, and
        `cleaning.corpora.NAME` for `train.corpora.NAME`.
        """
        counts = {
            key.replace("train", "cleaning", 1): count for key, count in taken.items() if count
        }
        if counts:
            write_json(self.corpora, {**self._known_checksums(), **counts})

    def record_initial_weights(self, checksum: str) -> None:
        """Keep the SHA-256 of the weights that the run begins with."""
        write_json(self.corpora, {**self._known_checksums(), "init_from": {"weights": checksum}})

    def checksums(self, key: str) -> Checksums:
        """Return those of the corpus at a key below `data`, as they have been recorded."""
        return Checksums(**self._known_checksums()[key])

    def _known_checksums(self) -> dict[str, dict[str, str]]:
        if not self.corpora.exists():
            return {}
        try:
            known = json.loads(self.corpora.read_text(encoding="utf-8"))
            return {name: dict(sums) for name, sums in known.items()}
        except (ValueError, TypeError, AttributeError):
            raise RunError(f"{self.corpora}: is damaged") from None


def open_run(path: Path, config: Config) -> tuple[RunFolder, list[str]]:
    """Make sure that a run can begin in a folder, or go on there with this config.

    Returns the folder, made if need be, and the lines that say what changed. Raises RunError for
    a folder that holds something else, or a run whose config differs in more than CHANGEABLE.
    """
    folder = RunFolder(path)
    if path.exists() and not path.is_dir():
        raise RunError(f"{path}: is a file, a run needs a folder")
    changes: list[str] = []
    if _has_trained(folder):
        changes = _changes(folder, config)
    elif path.exists() and not _never_trained(folder):
        raise RunError(f"{path}: holds something that is no run; name another folder with --run")
    path.mkdir(parents=True, exist_ok=True)
    return folder, changes


def begin(folder: RunFolder, config: Config) -> None:
    """Write the config; what was prepared for a run that came to no checkpoint is forgotten.

    For whoever holds the lock of `only_training`: another training may be preparing just then.
    """
    if not _has_trained(folder):
        _forget_preparation(folder)
    if not folder.config.exists() or load_config(folder.config) != config:
        write_text(folder.config, dump_config(config))


@contextmanager
def only_training(folder: RunFolder) -> Iterator[None]:
    """Keep a second training out of the folder, and tell where the folder is removed meanwhile.

    Without file locks, as on Windows and some network file systems, nobody is kept out.
    """
    with (folder.path / ".lock").open("a") as file:
        _lock(file, folder)
        try:
            yield
        except FileNotFoundError:
            if folder.path.exists():
                raise
            raise RunError(
                f"{folder.path}: the run folder was removed or renamed during the training, which "
                "ends here; if it has a new name, --run with that name goes on"
            ) from None


def _lock(file: IO[str], folder: RunFolder) -> None:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(f"{folder.path}: another training is at work here") from None
    except (ImportError, OSError):
        return


def differences(old: Config, new: Config) -> dict[str, tuple[object, object]]:
    """Return the old and new values of all keys that differ, by dotted key."""
    before, after = flat(old.model_dump(mode="json")), flat(new.model_dump(mode="json"))
    return {
        key: (before.get(key), after.get(key))
        for key in [*before, *(key for key in after if key not in before)]
        if before.get(key) != after.get(key)
    }


def _changes(folder: RunFolder, config: Config) -> list[str]:
    changed = differences(load_config(folder.config), config)
    told = {key: f"{key}: {before} -> {after}" for key, (before, after) in changed.items()}
    fixed = [line for key, line in told.items() if not _changeable(key)]
    if fixed:
        raise RunError(
            f"{folder.path}: holds a run of another config ({'; '.join(fixed)}); "
            "name another folder with --run"
        )
    if not folder.checkpoints.updates() and (later := [told[key] for key in ENDS if key in told]):
        raise RunError(
            f"{folder.path}: holds a model, but no checkpoint to go on from ({'; '.join(later)}); "
            "name another folder with --run"
        )
    return list(told.values())


def _changeable(key: str) -> bool:
    return any(key == allowed or key.startswith(f"{allowed}.") for allowed in CHANGEABLE)


def _has_trained(folder: RunFolder) -> bool:
    return folder.config.exists() and bool(folder.checkpoints.updates() or folder.model.exists())


def _never_trained(folder: RunFolder) -> bool:
    """Tell whether all that is there, if anything, is of a run that came to no checkpoint.

    A config written by hand, with comments and without the defaults, is not what a run writes.
    """
    ours = {path.name for path in (folder.config, folder.tokenizer, folder.metrics)}
    ours |= {folder.corpora.name, folder.environment.name, folder.checkpoints.folder.name}
    ours |= {folder.tensorboard.name}
    names = {path.name for path in folder.path.iterdir() if not path.name.startswith(".")}
    if not names:
        return True
    if folder.config.name not in names or not names <= ours:
        return False
    try:
        return folder.config.read_text(encoding="utf-8") == dump_config(load_config(folder.config))
    except (ConfigError, ValueError):
        return False


def _forget_preparation(folder: RunFolder) -> None:
    """Remove what a run without any checkpoint prepared: another config may prepare otherwise."""
    for file in [*folder.tokenizer.glob("*"), folder.corpora]:
        file.unlink(missing_ok=True)


def flat(tree: dict[str, object], prefix: str = "") -> dict[str, object]:
    """Return the leaves of nested dictionaries by dotted key."""
    leaves: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            leaves.update(flat(value, f"{prefix}{key}."))
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves
