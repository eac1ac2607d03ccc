"""The run folder: its files, its lock, and the config changes that a run accepts."""

import importlib.metadata
import logging
import math
import os
import platform
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from mt import __version__
from mt.config import Config, TrainingConfig
from mt.config.loading import dump_config, load_config, open_keys, with_values
from mt.data.pairs import Checksums
from mt.errors import ConfigError, RunError, UserError
from mt.files import (
    delete_abandoned,
    hash_file,
    lock_file,
    read_json,
    validate_values,
    write_json,
    write_text,
)
from mt.runs import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    CORPORA_FILE,
    ENVIRONMENT_FILE,
    JOURNAL_FILE,
    MODEL_FILE,
    TOKENIZER_FOLDER,
    WEIGHTS_FILE,
    CorpusRecord,
    Provenance,
    read_description,
)
from mt.training.checkpoint import Checkpoints

_logger = logging.getLogger(__name__)
_ENDS = ("training.max_updates", "training.max_epochs", "training.patience")
# These set the end, the frequency of checks, the checkpoints that are kept, or the hardware.
CHANGEABLE = (
    *_ENDS,
    "data.check",
    "training.validate_every",
    "training.checkpoint_every",
    "training.log_every",
    "training.tensorboard",
    "training.export",
    "training.keep_best",
    "training.keep_last",
    "training.max_tokens_per_batch",
    "training.device",
    "training.compile",
    "evaluation.expected",
    "evaluation.published",
    # Validation has a greedy search of its own, with all other keys of `decoding`.
    *("decoding.search", "decoding.beam", "decoding.ensemble", "decoding.adapter"),
    *("decoding.length_normalization", "decoding.length_penalty"),
    *("decoding.temperature", "decoding.top_k", "decoding.top_p", "decoding.seed"),
    *("decoding.mbr", "decoding.repair"),
    *("decoding.batch_size", "decoding.engine", "decoding.quantization", "decoding.precision"),
)


class RunFolder:
    """The paths of a run, and the record of the data that it was begun with."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        self.path = path
        self.is_new = is_new
        self.changes: list[str] = []
        """A line for each config key that has changed since the run began."""
        self.config = path / CONFIG_FILE
        self.tokenizer = path / TOKENIZER_FOLDER
        self.model = path / MODEL_FILE
        """Description of the final model; written last, it marks a finished run."""
        self.weights = path / WEIGHTS_FILE
        self.metrics = path / JOURNAL_FILE
        self.tensorboard = path / "tensorboard"
        self.environment = path / ENVIRONMENT_FILE
        """Versions, machine and arithmetic of the run."""
        self.corpora = path / CORPORA_FILE
        """SHA-256 of corpora, tokenizer and initial weights at first use, and cleaning counts."""
        self.checkpoints = Checkpoints(path / CHECKPOINTS_FOLDER)

    def record_corpora(
        self, checksums: Mapping[str, Checksums], *, initial_weights: str | None = None
    ) -> None:
        """Record the checksums of corpora and initial weights; the latter None without new ones.

        Raises RunError where a corpus has changed since the run began.
        """
        known = self._record()
        entries = {key: asdict(sums) for key, sums in checksums.items()}
        for split, sides in entries.items():
            for side, now in sides.items():
                before = known.get(split, {}).get(side, now)
                if before != now:
                    raise RunError(
                        f"{self.path}: the {side} side of `data.{split}` has changed since this "
                        f"run began (SHA-256 {str(before)[:12]}... then, {now[:12]}... now); "
                        "restore the old file, or train a new run with --run"
                    )
        if initial_weights is not None:
            entries["init_from"] = {"weights": initial_weights}
        self._add_to_record(entries)

    def record_prepared(self, tokenizer: str, removed: Mapping[str, Mapping[str, int]]) -> None:
        """Record the fingerprint of the tokenizer, and the pairs that each filter has removed.

        `removed` has the counts by corpus, whose keys begin with `train`, those in the file with
        `cleaning`. Raises RunError where the tokenizer has changed since the run began.
        """
        before = self._record().get("tokenizer", {}).get("fingerprint", tokenizer)
        if before != tokenizer:
            raise RunError(
                f"{self.tokenizer}: is the tokenizer of another run "
                f"(fingerprint {tokenizer[:12]}, this run began with {str(before)[:12]})"
            )
        cleaned = {
            key.replace("train", "cleaning", 1): counts for key, counts in removed.items() if counts
        }
        self._add_to_record({"tokenizer": {"fingerprint": tokenizer}, **cleaned})

    def initial_weights(self) -> str:
        """Return the recorded SHA-256 of the initial weights; empty without them."""
        return str(self._record().get("init_from", {}).get("weights", ""))

    def checksums(self, key: str) -> Checksums:
        """Return the recorded checksums of the corpus at a key below `data`."""
        return validate_values(self._record().get(key), Checksums, self.corpora)

    def _record(self) -> CorpusRecord:
        try:
            return read_json(self.corpora, CorpusRecord)
        except FileNotFoundError:
            if self.checkpoints.updates():
                raise RunError(
                    f"{self.corpora}: missing; restore it: without its checksums, the run could go "
                    "on with another text"
                ) from None
            return {}
        except RunError as error:
            raise RunError(f"{error}; train a new run with --run") from None

    def _add_to_record(self, entries: Mapping[str, object]) -> None:
        before = self._record()
        if (record := {**before, **entries}) != before:
            write_json(self.corpora, record)

    def begin(self, config: Config) -> None:
        """Write the config, and delete what was prepared for a run that has no checkpoint yet.

        Call it inside `open_run`: another training may be preparing its data.
        """
        if not self.has_trained():
            with suppress(FileNotFoundError):
                shutil.rmtree(self.tokenizer)
            self.corpora.unlink(missing_ok=True)
        if not self.config.exists() or load_config(self.config) != config:
            self.write_config(config)

    def write_config(self, config: Config) -> None:
        """Write the config, without the keys that it leaves open."""
        write_text(self.config, dump_config(config))

    def has_trained(self) -> bool:
        """Return True where there is a checkpoint or a final model."""
        return self.config.exists() and bool(self.checkpoints.updates() or self.model.exists())

    def resume_config(self, config: Config) -> Config:
        """Return a config with the settings that were chosen for the run in this folder.

        Lists the `changes`. Raises RunError where the config differs in more than may change.
        """
        stored = load_config(self.config)
        values: dict[str, Any] = {}
        run, training, old = str(self.path), config.training, stored.training
        words = ["mt", "train", run, "--run", f"{run}-2", f"--set=training.init_from={run}"]
        hint = "" if self.model.exists() else "at its end, "
        hint += f"a new run continues its training: {shlex.join(words)}"
        longer = [] if training.budget in {None, old.budget} else ["budget"]
        if old.schedule in {"linear", "cosine"}:  # the rate is 0 at the last update
            if not training.budget and (training.max_updates or 0) > (old.decay_updates or 0):
                longer.append("max_updates")
            if self.model.exists() and training.max_epochs not in {None, old.max_epochs}:
                longer.append("max_epochs")
        if longer:
            wish = f"--set=training.{longer[0]}={getattr(training, longer[0])}"
            raise RunError(f"{self.path}: this run cannot become longer; {hint} {wish}")
        last, end = old.max_updates or math.inf, training.max_updates or math.inf
        if training.budget is not None and not training.is_open("max_updates") and end > last:
            values["training.max_updates"] = last  # the budget has chosen it
            text = "%s: `training.budget: %s` ends this run after update %s; %s"
            _logger.info(text, self.path, training.budget, f"{last:,}", hint)
        for key in set(open_keys(config)) - set(open_keys(stored)):
            section, name = key.split(".")
            values[key] = getattr(getattr(stored, section), name)
        if config.decoding.search == "auto":
            values["decoding.search"] = stored.decoding.search
        resumed = with_values(config, values)
        before, after = stored.split_tags("valid"), resumed.split_tags("valid")
        unused = [f"decoding.{key}" for key in after if before[key] == after[key]]
        ended = ["training.budget"] if training.budget is None else []
        changed = find_differences(stored.flat(), resumed.flat())
        lines = {key: f"{key}: {before} -> {after}" for key, (before, after) in changed.items()}
        free = tuple(f"{key}." for key in (*CHANGEABLE, *unused, *ended))
        fixed = [line for key, line in lines.items() if not f"{key}.".startswith(free)]
        if fixed:
            reason = ""
            if any(line.startswith("decoding.") for line in fixed):
                reason = "; validation ranks the checkpoints with these keys of `decoding`"
            raise RunError(
                f"{self.path}: holds a run of another config ({'; '.join(fixed)}){reason}; "
                "name another folder with --run"
            )
        ends = [lines[key] for key in _ENDS if key in lines]
        if ends and not self.checkpoints.updates():
            raise RunError(
                f"{self.path}: holds a model, but no checkpoint to resume from "
                f"({'; '.join(ends)}); name another folder with --run"
            )
        self.changes = [*lines.values()]
        return resumed

    def final_score(self, training: TrainingConfig) -> str | None:
        """Return the score of a run that has ended as set; None before, or if its model is lost."""
        if not self.model.exists():
            return None
        try:
            end, described = read_json(self.model, Provenance), read_description(self.model)
        except RunError as error:
            raise RunError(f"{error}; delete it to write it again") from None
        if end.ends != ends_of(training) or not self.weights.exists():
            return None
        return end.score if hash_file(self.weights) == described.weights else None


def ends_of(training: TrainingConfig) -> dict[str, int | None]:
    """Return the keys that end a training, with their values."""
    return {key: getattr(training, key) for key in ("max_updates", "max_epochs", "patience")}


@contextmanager
def open_run(path: Path) -> Iterator[RunFolder]:
    """Yield the folder of a run, new or to be resumed, locked against a second training.

    Raises RunError for a folder with other content, and explains where the folder disappears
    meanwhile. A folder that is new is deleted after an error before the first update.
    """
    folder = RunFolder(path, is_new=not path.exists())
    if path.exists() and not path.is_dir():
        raise RunError(f"{path}: is a file, a run needs a folder")
    if path.exists() and not folder.has_trained():
        known = {CONFIG_FILE, TOKENIZER_FOLDER, JOURNAL_FILE, CORPORA_FILE, ENVIRONMENT_FILE}
        known |= {CHECKPOINTS_FOLDER, folder.tensorboard.name}
        names = {path.name for path in path.iterdir() if not path.name.startswith(".")}
        is_run = CONFIG_FILE in names and names <= known
        if is_run and not folder.corpora.exists():
            # A config written by hand, with comments and without defaults, is not that of a run.
            try:
                text = dump_config(load_config(folder.config))
                is_run = text == folder.config.read_text(encoding="utf-8")
            except (ConfigError, ValueError):
                is_run = False
        if names and not is_run:
            raise RunError(f"{path}: not empty, and no run folder; name another folder with --run")
    path.mkdir(parents=True, exist_ok=True)
    busy = RunError(f"{path}: another training is running here")
    with lock_file(path / ".lock", busy=busy):
        for inside, *_ in os.walk(path):
            delete_abandoned(Path(inside))
        try:
            yield folder
        except (OSError, UserError) as error:
            if isinstance(error, FileNotFoundError) and not path.exists():
                raise RunError(
                    f"{path}: the run folder was removed or renamed during the training, "
                    "which ends here; if it was renamed, --run with the new name continues it"
                ) from None
            if folder.is_new and not folder.metrics.exists():
                shutil.rmtree(path, ignore_errors=True)
            raise


def find_differences(
    old: Mapping[str, object], new: Mapping[str, object]
) -> dict[str, tuple[object, object]]:
    """Return the old and new values of all dotted keys that differ."""
    return {
        key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)
    }


_PACKAGES = ("torch", "numpy", "sentencepiece", "datasets", "pyarrow", "sacrebleu", "safetensors")


def environment(device: torch.device, precision: str) -> dict[str, object]:
    """Return versions, machine and arithmetic as plain data."""
    name = f": {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
    versions = {}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    processor = platform.processor()
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        named = (line for line in text.splitlines() if line.startswith("model name"))
        processor = next(named, f":{processor}").split(":", 1)[1].strip()
    return {
        "mt": __version__,
        "python": platform.python_version(),
        "packages": versions,
        "folder": str(Path.cwd()),  # relative paths of the config begin there
        "system": platform.platform(),
        "processor": processor,
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": f"{device.type}{name}",
        "precision": precision,
    }


def peak_memory_mib() -> float | None:
    """Return the peak resident memory of this process in MiB; None where it is unknown."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if platform.system() == "Darwin" else 2**10)
