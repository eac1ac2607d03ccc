"""What a run folder tells of itself, for `mt info` and the model card."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from mt.config import Config, Source
from mt.config.loading import load_config
from mt.data.tokenizer import Tokenizer
from mt.decoding.load import load_tokenizer
from mt.errors import RunError
from mt.evaluation.scores import Interval, Score
from mt.runs import (
    CONFIG_FILE,
    CORPORA_FILE,
    ENVIRONMENT_FILE,
    EVALUATIONS_FOLDER,
    JOURNAL_FILE,
    MODEL_FILE,
    TOKENIZER_FOLDER,
    WEIGHTS_FILE,
    Exported,
    check_exported_model,
    check_finished,
    check_run_folder,
    check_weights,
    is_exported,
    read_description,
    read_exported,
)

PASSPORT_SUFFIX = ".passport.json"
"""Of the passport of a file of translations that was scored by itself, wherever it lies."""
ROBUSTNESS_SUFFIX = ".robustness.json"
"""Of what `mt evaluate --robustness` writes for a split."""


@dataclass(frozen=True, slots=True)
class CorpusInfo:
    """A corpus of the run; None is what the folder does not tell."""

    split: str
    name: str | None
    """`corpus` in the config."""
    places: tuple[str, ...]
    """Paths or addresses, or name and commit on the hub, as the config has them."""
    pairs: int | None
    """Of `train` those that were learnt from."""
    sha256_source: str | None
    sha256_target: str | None


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """The vocabularies."""

    algorithm: str
    vocabulary: str
    """`joint` or `separate`."""
    source_size: int
    target_size: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The final model of a finished run."""

    parameters: int
    bytes: int
    sha256: str
    """Of the weight file."""
    longest_source: int
    """Tokens, end mark included; longer lines are split."""
    updates: int
    averaged_updates: tuple[int, ...]
    validation: str
    """Loss and scores on the validation pairs, with signatures."""
    too_long: int | None
    """Training pairs left out for their length."""
    empty: int | None
    """Training pairs left out for an empty side."""


@dataclass(frozen=True, slots=True)
class ScoredSplit:
    """What `mt evaluate` has written for a split."""

    split: str
    sentences: int
    bleu: Score
    chrf: Score
    overrides: tuple[str, ...]
    """The decoding keys that were not those of the config, `KEY=VALUE`."""
    current: bool
    """Whether it was made with the weights that are there now."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What the last training in the folder ran on."""

    started_at: str | None
    mt: str | None
    python: str | None
    torch: str | None
    system: str | None
    processor: str | None
    device: str | None
    precision: str | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """All that a run folder tells."""

    run: Path
    config: Config
    corpora: tuple[CorpusInfo, ...]
    tokenizer: TokenizerInfo | None
    """None where the training has not come to it."""
    model: ModelInfo | None
    """None where the training has not finished, and in an exported folder."""
    exported: Exported | None
    """What was exported, where it is no run but a folder of `mt export`."""
    updates: int
    """How far the training has come, as its journal has it."""
    scores: tuple[ScoredSplit, ...]
    environment: Environment

    @property
    def state(self) -> Literal["finished", "unfinished", "exported"]:
        """What kind of folder it is."""
        if self.exported:
            return "exported"
        return "finished" if self.model else "unfinished"

    def as_record(self) -> dict[str, Any]:
        """Return everything as plain data, the config whole."""
        return {
            "run": str(self.run),
            "state": self.state,
            "config": self.config.model_dump(mode="json", by_alias=True),
            "corpora": [asdict(corpus) for corpus in self.corpora],
            "tokenizer": asdict(self.tokenizer) if self.tokenizer else None,
            "model": asdict(self.model) if self.model else None,
            "exported": asdict(self.exported) if self.exported else None,
            "updates": self.updates,
            "scores": [asdict(scored) for scored in self.scores],
            "environment": asdict(self.environment),
        }


def read_info(run: Path) -> RunInfo:
    """Read what the folder of a run tells, finished or not, or a folder of `mt export`.

    Tokenizer and weights are held against the hashes that were recorded: one that is damaged or of
    another run is a RunError naming the file, as is a record that cannot be read.
    """
    check_run_folder(run)
    config = load_config(run / CONFIG_FILE)
    exported = _exported(run) if is_exported(run) else None
    described: dict[str, Any] = {}
    if (run / MODEL_FILE).exists() or (run / WEIGHTS_FILE).exists():
        check_finished(run)
        described = _read_record(run / MODEL_FILE)
    model = _model(run, described) if described else None
    sums = _read_record(run / CORPORA_FILE)
    weights, tokenizer = model.sha256 if model else None, described.get("tokenizer")
    if exported:
        weights, tokenizer = exported.weights, exported.tokenizer
    began_with = sums.get("tokenizer", {}).get("fingerprint")
    return RunInfo(
        run=run,
        config=config,
        corpora=tuple(_corpora(config, sums, described)),
        tokenizer=_tokenizer(run, tokenizer or began_with),
        model=model,
        exported=exported,
        updates=model.updates if model else _journalled_updates(run / JOURNAL_FILE),
        scores=tuple(_scores(run, config, weights)),
        environment=_environment(_read_record(run / ENVIRONMENT_FILE)),
    )


def _exported(folder: Path) -> Exported:
    exported = read_exported(folder)
    check_exported_model(folder, exported)
    return exported


def _read_record(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty where no file is there."""
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError):
        raise RunError(f"{path}: damaged, or not written by mt") from None


def _model(run: Path, described: dict[str, Any]) -> ModelInfo:
    description = read_description(run / MODEL_FILE)
    check_weights(run, description.weights)
    pairs = described.get("pairs", {})
    return ModelInfo(
        parameters=_count_parameters(run / WEIGHTS_FILE),
        bytes=(run / WEIGHTS_FILE).stat().st_size,
        sha256=description.weights,
        longest_source=description.longest_source,
        updates=int(described.get("updates", 0)),
        averaged_updates=tuple(described.get("averaged_updates", ())),
        validation=str(described.get("score", "")),
        too_long=pairs.get("too_long"),
        empty=pairs.get("empty"),
    )


def _count_parameters(weights: Path) -> int:
    """Add up the shapes in the file's head; a matrix that parts share is there once."""
    try:
        with safe_open(weights, framework="numpy") as file:
            return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except SafetensorError as error:
        raise RunError(f"{weights}: damaged ({error})") from error


def _corpora(
    config: Config, sums: Mapping[str, Any], described: Mapping[str, Any]
) -> Iterator[CorpusInfo]:
    data, pairs = config.data, described.get("pairs", {})
    sources = {**data.train_corpora(), "valid": data.valid}
    sources.update({f"tests.{name}": source for name, source in data.tests.items()})
    for split, source in sources.items():
        recorded = sums.get(split, {})
        yield CorpusInfo(
            split=split,
            name=source.corpus,
            places=tuple(_places(source)),
            pairs=pairs.get(split),
            sha256_source=recorded.get("source"),
            sha256_target=recorded.get("target"),
        )


def _places(source: Source) -> Iterator[str]:
    named = source.model_dump(mode="json")
    for key in ("source", "target", "path", "name", "revision"):
        if named.get(key) is not None:
            yield str(named[key])


def _tokenizer(run: Path, fingerprint: str | None) -> TokenizerInfo | None:
    folder = run / TOKENIZER_FOLDER
    if fingerprint is None and not any(folder.glob("*.json")):
        return None
    tokenizer = load_tokenizer(run, fingerprint) if fingerprint else Tokenizer.load(folder)
    return TokenizerInfo(
        algorithm=tokenizer.source.algorithm,
        vocabulary="joint" if tokenizer.source is tokenizer.target else "separate",
        source_size=tokenizer.source_size,
        target_size=tokenizer.target_size,
        fingerprint=tokenizer.fingerprint,
    )


def _journalled_updates(journal: Path) -> int:
    if not journal.is_file():
        return 0
    newest = 0
    for line in journal.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            newest = int(json.loads(line).get("update", newest))
        except (ValueError, AttributeError, TypeError):
            continue  # a line that a full disk has cut short
    return newest


def _scores(run: Path, config: Config, weights: str | None) -> Iterator[ScoredSplit]:
    defaults = config.decoding.model_dump(mode="json")
    for path in sorted((run / EVALUATIONS_FOLDER).glob("*.json")):
        if path.name.endswith((PASSPORT_SUFFIX, ROBUSTNESS_SUFFIX)):
            continue  # of a file that was scored there, or of changed sources
        record = _read_record(path)
        try:
            decoding = record["decoding"].items()
            yield ScoredSplit(
                split=str(record["split"]),
                sentences=int(record["sentences"]),
                bleu=_score("BLEU", record["bleu"]),
                chrf=_score("chrF2", record["chrf"]),
                overrides=tuple(
                    f"{key}={value}" for key, value in decoding if defaults.get(key) != value
                ),
                current=record["weights"] == weights,
            )
        except (KeyError, TypeError, AttributeError, ValueError):
            raise RunError(f"{path}: damaged, or not written by mt") from None


def _score(name: str, record: Mapping[str, Any]) -> Score:
    interval = Interval(**record["interval"]) if "interval" in record else None
    return Score(name, float(record["score"]), str(record["signature"]), interval)


def _environment(record: Mapping[str, Any]) -> Environment:
    return Environment(
        started_at=record.get("started_at"),
        mt=record.get("mt"),
        python=record.get("python"),
        torch=record.get("packages", {}).get("torch"),
        system=record.get("system"),
        processor=record.get("processor"),
        device=record.get("device"),
        precision=record.get("precision"),
    )
