"""Description of a run for `mt info`, and its model card, README.md of the run folder."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeVar

from safetensors import safe_open

from mt.config import Config, DataConfig, DecodingConfig
from mt.config.data import HeldOutSource, tags_as_text, trained_directions, trained_tags
from mt.config.loading import load_config
from mt.data.corpus_files import LONGEST_LINE
from mt.data.tokenizer import Tokenizer
from mt.errors import RunError, UserError, did_you_mean, listed
from mt.evaluation.scores import ConfidenceInterval, Score
from mt.files import check_sha256, read_json, write_text
from mt.runs import (
    CONFIG_FILE,
    CORPORA_FILE,
    ENVIRONMENT_FILE,
    EVALUATIONS_FOLDER,
    JOURNAL_FILE,
    MODEL_FILE,
    TOKENIZER_FOLDER,
    WEIGHTS_FILE,
    CorpusRecord,
    Exported,
    Provenance,
    check_finished,
    check_run_folder,
    is_exported,
    is_finished,
    read_description,
    read_exported,
    read_verified_export,
)

_logger = logging.getLogger(__name__)
T = TypeVar("T")
PASSPORT_SUFFIX = ".passport.json"
_PLACE_KEYS = ("source", "target", "path", "name", "revision")
"""Keys of a corpus that say where it is."""


def read_config(run: Path, data: DataConfig | None = None) -> Config:
    """Return the config of a run or export; raise RunError if it is missing.

    An imported run has no corpora; `data` takes their place.
    """
    if not (run / CONFIG_FILE).is_file():
        check_finished(run)  # raises RunError, which names the missing file
    config = load_config(run / CONFIG_FILE)
    return config.changed(data=data) if data and not config.data.has_corpora else config


def weights_sha256(folder: Path) -> str:
    """Return the recorded hash of the weights of a finished run or export."""
    if is_exported(folder):
        return read_exported(folder).weights
    return read_description(folder / MODEL_FILE).weights


def read_events(journal: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal, if any; skip lines truncated by a full disk."""
    if journal.is_file():
        with journal.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                with suppress(ValueError, RecursionError):
                    event = json.loads(line)
                    if isinstance(event, dict) and "event" in event:
                        yield event


def choose_split(data: DataConfig, split: str | None) -> str:
    """Return the split to score: the requested one, else `test`, else the only test split.

    Raises UserError for an unknown split, and if the choice is ambiguous.
    """
    if not data.has_corpora and split not in data.tests:
        raise UserError("an imported model has no splits: give --sources and --references")
    names = data.split_names()
    if split is not None:
        if split not in names:
            near = did_you_mean(split, names) or f"; there are {listed(names)}"
            raise UserError(f"split `{split}` is unknown{near}")
        return split
    if "test" in data.tests:
        return "test"
    if len(data.tests) == 1:
        return next(iter(data.tests))
    raise UserError(f"which split? name one with --split: {listed(names)}")


@dataclass(frozen=True, slots=True)
class CorpusInfo:
    """Corpus of a run; a field is None if the folder does not record it."""

    split: str
    name: str | None
    """Name given by `corpus` in the config."""
    places: tuple[str, ...]
    """Paths or addresses, name and commit on the hub, or the corpora of held-out pairs."""
    pairs: int | None
    """Number of pairs; for `train`, the pairs used in training."""
    sha256_source: str | None
    sha256_target: str | None


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """Algorithm and vocabularies of a tokenizer."""

    algorithm: str
    vocabulary: str
    source_size: int
    target_size: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Final model of a finished run."""

    parameters: int
    bytes: int
    sha256: str
    longest_source: int
    """Longest source line in tokens, end mark included; longer lines are split."""
    updates: int
    averaged_updates: tuple[int, ...]
    validation: str
    """Loss and scores on the validation pairs, with signatures."""


@dataclass(frozen=True, slots=True)
class ScoredSplit:
    """Scores of a split, as written by `mt evaluate`."""

    split: str
    sentences: int
    bleu: Score
    chrf: Score
    overrides: tuple[str, ...]
    """Decoding settings that differ from the config, as `KEY=VALUE`."""
    current: bool
    """True if the scores belong to the weights in the folder."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Machine and versions of the last training session."""

    started_at: str | None = None
    mt: str | None = None
    python: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    device: str | None = None
    precision: str | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Description of a run folder or export."""

    run: Path
    config: Config
    corpora: tuple[CorpusInfo, ...]
    tokenizer: TokenizerInfo | None
    """None before the tokenizer has been trained."""
    model: ModelInfo | None
    """None if training has not finished, and for an export."""
    exported: Exported | None
    updates: int
    scores: tuple[ScoredSplit, ...]
    environment: Environment

    @property
    def state(self) -> Literal["finished", "unfinished", "exported"]:
        """Kind of folder."""
        if self.exported:
            return "exported"
        return "finished" if self.model else "unfinished"

    def as_record(self) -> dict[str, Any]:
        """Return the description as plain data."""
        return {
            **asdict(self),
            "run": str(self.run),
            "state": self.state,
            "config": self.config.model_dump(mode="json", by_alias=True),
        }


def read_info(run: Path) -> RunInfo:
    """Describe a finished or unfinished run, or an export.

    Raises RunError, naming the file, if the tokenizer or the weights do not match their recorded
    hashes, and if a record cannot be read.
    """
    check_run_folder(run)
    config = load_config(run / CONFIG_FILE, as_recorded=True)
    exported = read_verified_export(run) if is_exported(run) else None
    model = provenance = None
    if (run / MODEL_FILE).exists() or (run / WEIGHTS_FILE).exists():
        check_finished(run)
        provenance = read_json(run / MODEL_FILE, Provenance)
        model = _read_model(run, provenance)
    sums = _read_if_there(run / CORPORA_FILE, CorpusRecord) or {}
    recorded = sums.get("tokenizer", {}).get("fingerprint")
    weights, fingerprint = None, None if recorded is None else str(recorded)
    if exported:
        weights, fingerprint = exported.weights, exported.tokenizer
    elif model:
        weights, fingerprint = model.sha256, read_description(run / MODEL_FILE).tokenizer
    updates = [event.get("update", 0) for event in read_events(run / JOURNAL_FILE)]
    return RunInfo(
        run=run,
        config=config,
        corpora=tuple(_list_corpora(config.data, sums, provenance.pairs if provenance else {})),
        tokenizer=_read_tokenizer(run, fingerprint),
        model=model,
        exported=exported,
        updates=model.updates if model else [0, *updates][-1],
        scores=tuple(_read_scores(run, config.decoding, weights)),
        environment=_read_if_there(run / ENVIRONMENT_FILE, Environment) or Environment(),
    )


def _read_if_there(path: Path, kind: type[T]) -> T | None:
    """Return the contents of a JSON file, or None if it is missing."""
    try:
        return read_json(path, kind)
    except FileNotFoundError:
        return None


def _read_model(run: Path, provenance: Provenance) -> ModelInfo:
    description, weights = read_description(run / MODEL_FILE), run / WEIGHTS_FILE
    check_sha256(weights, description.weights, MODEL_FILE)
    with safe_open(weights, framework="numpy") as file:  # tied matrices are written once
        parameters = sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return ModelInfo(
        parameters=parameters,
        bytes=weights.stat().st_size,
        sha256=description.weights,
        longest_source=description.longest_source,
        updates=provenance.updates,
        averaged_updates=tuple(provenance.averaged_updates),
        validation=provenance.score,
    )


def _list_corpora(
    data: DataConfig, sums: Mapping[str, Mapping[str, Any]], pairs: Mapping[str, int]
) -> Iterator[CorpusInfo]:
    sources = {**data.train_corpora(), "valid": data.valid}
    sources.update({f"tests.{name}": source for name, source in data.tests.items()})
    for split, source in sources.items():
        recorded, named = sums.get(split, {}), source.model_dump(mode="json")
        places = [str(named[key]) for key in _PLACE_KEYS if named.get(key) is not None]
        if isinstance(source, HeldOutSource):
            places = [f"held out of {', '.join(data.matching_corpora(source))}"]
        yield CorpusInfo(
            split=split,
            name=named.get("corpus"),
            places=tuple(places),
            pairs=pairs.get(split),
            sha256_source=recorded.get("source"),
            sha256_target=recorded.get("target"),
        )


def _read_tokenizer(run: Path, fingerprint: str | None) -> TokenizerInfo | None:
    folder = run / TOKENIZER_FOLDER
    if fingerprint is None and not any(folder.glob("*.json")):
        return None
    tokenizer = Tokenizer.load(folder, fingerprint)
    return TokenizerInfo(
        algorithm=tokenizer.source.algorithm,
        vocabulary="joint" if tokenizer.source is tokenizer.target else "separate",
        source_size=tokenizer.source_size,
        target_size=tokenizer.target_size,
        fingerprint=tokenizer.fingerprint,
    )


def _read_scores(run: Path, decoding: DecodingConfig, weights: str | None) -> Iterator[ScoredSplit]:
    defaults = decoding.model_dump(mode="json")
    for path in sorted((run / EVALUATIONS_FOLDER).glob("*.json")):
        if path.name.endswith(PASSPORT_SUFFIX):
            continue
        record = read_json(path, dict[str, Any])
        try:
            settings = record["decoding"].items()
            yield ScoredSplit(
                split=str(record["split"]),
                sentences=int(record["sentences"]),
                bleu=_read_score("BLEU", record["bleu"]),
                chrf=_read_score("chrF2", record["chrf"]),
                overrides=tuple(
                    f"{key}={value}" for key, value in settings if defaults.get(key) != value
                ),
                current=record["weights"] == weights,
            )
        except (KeyError, TypeError, AttributeError, ValueError):
            raise RunError(f"{path}: damaged, or not written by mt") from None


def _read_score(name: str, record: Mapping[str, Any]) -> Score:
    interval = ConfidenceInterval(**record["interval"]) if "interval" in record else None
    return Score(name, float(record["score"]), str(record["signature"]), interval)


CARD_FILE = "README.md"


def render_card(run: Path) -> str | None:
    """Return the card of a finished run; None for another folder and, with a warning, on an error.

    Rendered before a change of the run, it shows whether README.md was edited: see `update_card`.
    """
    try:
        info = read_info(run) if is_finished(run) else None
        return model_card(info, info.model) if info and info.model else None
    except (UserError, OSError) as error:
        _logger.warning("%s: no model card (%s)", run, error)
        return None


def update_card(run: Path, previous: str | None) -> None:
    """Write README.md, unless it exists and is not `previous`, the card before the change."""
    path = run / CARD_FILE
    try:
        if path.exists() and path.read_text(encoding="utf-8", errors="replace") != previous:
            _logger.info("%s: is not the card of mt, so it is kept; delete it for a new one", path)
        elif card := render_card(run):
            write_text(path, card)
    except OSError as error:
        _logger.warning("%s: the model card was not written (%s)", path, error)


def model_card(info: RunInfo, model: ModelInfo) -> str:
    """Return the card of a finished run as Markdown, with the YAML header of model hubs."""
    directions = trained_directions(info.config.data)
    codes = dict.fromkeys(code for pair in directions for code in (pair.source, pair.target))
    languages = ", ".join(f'"{code}"' for code in codes)
    named = " and ".join(f"from `{pair.source}` to `{pair.target}`" for pair in directions)
    tags = [f"decoding.{key}={next(iter(of))}" for key, of in info.config.tags_to_choose().items()]
    option = "".join(f" --set '{tag}'" for tag in tags)
    corpora = [
        (
            corpus.split,
            "" if corpus.pairs is None else f"{corpus.pairs:,}",
            ", ".join(f"`{name}`" for name in (corpus.name, *corpus.places) if name),
        )
        for corpus in info.corpora
    ]
    sections = (
        f"---\nlanguage: [{languages}]\npipeline_tag: translation\n---",
        f"# Translation {named}",
        f"A Transformer of {model.parameters:,} parameters, trained with mt "
        f"{info.environment.mt or ''} on {(info.environment.started_at or '')[:10]}; `config.yaml` "
        "has all settings, `mt info .` more on this folder.",
        f"```sh\nmt translate . input.txt --output output.txt{option}\n```",
        "## Data",
        _format_table([("split", "pairs", "corpus"), *corpora]),
        "## Model",
        _format_table([("", ""), *_list_settings(info, model)]),
        "## Scores",
        f"On the validation pairs, at the end of training: {model.validation}.",
        *_format_scores(info),
        "## Limits",
        "\n".join(f"- {limit}" for limit in _list_limits(info, model)),
    )
    return "\n\n".join(sections) + "\n"


def _list_settings(info: RunInfo, model: ModelInfo) -> Iterator[Sequence[str]]:
    shape, tokenizer = info.config.model, info.tokenizer
    assert tokenizer is not None
    yield "variant", f"{shape.residual} {shape.norm}, {shape.feed_forward}, {shape.positional}"
    yield "layers", f"{shape.encoder_layers} encoder, {shape.decoder_layers} decoder"
    yield "widths", f"d_model {shape.d_model}, d_ff {shape.d_ff}, {shape.heads} heads"
    sizes = f"{tokenizer.source_size:,} source and {tokenizer.target_size:,} target tokens"
    yield "tokenizer", f"{tokenizer.algorithm}, {tokenizer.vocabulary}, {sizes}"
    averaged = len(model.averaged_updates)
    mean = f", mean of {averaged} checkpoints" if averaged > 1 else ""
    yield "updates", f"{model.updates:,}{mean}"
    if tags := tags_as_text(trained_tags(info.config.data)):
        yield "tags", ", ".join(tags)
    yield "SHA-256 of the weights", f"`{model.sha256}`"


def _format_scores(info: RunInfo) -> Iterator[str]:
    rows = [
        (
            scored.split,
            str(scored.sentences),
            score.name,
            f"{score.value:.2f}",
            f"`{score.signature}`",
            ", ".join(scored.overrides) or "as in the config",
        )
        for scored in info.scores
        if scored.current
        for score in (scored.bleu, scored.chrf)
    ]
    if rows:
        head = ("split", "sentences", "metric", "score", "signature", "decoding")
        yield _format_table([head, *rows])


def _list_limits(info: RunInfo, model: ModelInfo) -> Iterator[str]:
    yield (
        "The model was trained on the corpus above only: text of another kind, domain or spelling "
        "is translated worse than the scores suggest."
    )
    yield (
        f"A line of more than {model.longest_source} tokens, the longest in training, is split "
        "into parts that are translated independently."
    )
    if not any(scored.current for scored in info.scores):
        yield "No test split has been scored, only the pairs that selected the checkpoint."
    yield (
        "Names, numbers, offensive or private text, bias and the licences of the corpora have not "
        "been checked. Have important translations reviewed."
    )


def _format_table(rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the first row is the header."""
    escaped = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    escaped.insert(1, ["---"] * len(escaped[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)
