"""Evaluation of a run on a split, and of files of translations."""

import hashlib
import logging
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mt import __version__
from mt.config import Config, DataConfig
from mt.config.data import TAG_KEYS, TextSource, chosen_direction
from mt.config.loading import load_config
from mt.data.corpus_files import LineReader
from mt.data.glossary import read_terms
from mt.data.pairs import SentencePair, TextPairs
from mt.data.sources import find_test_set
from mt.data.splits import open_split
from mt.decoding.load import require_tag
from mt.decoding.translator import Translation, Translator, log_notes
from mt.errors import RunError, UserError
from mt.evaluation.checks import ScoredText, TextChecks, check_named_once, require_same_lengths
from mt.evaluation.run_info import choose_split, read_config, render_card, update_card
from mt.evaluation.scores import Evaluation, MetricCommand, evaluate, label_scores
from mt.files import hash_file, read_json, require_regular_file, resolved, write_json, write_text
from mt.languages import base_language
from mt.model.device import keep_freed_memory
from mt.runs import (
    CONFIG_FILE,
    EVALUATIONS_FOLDER,
    EXPORT_FILE,
    MODEL_FILE,
    export_folder,
    is_exported,
    is_finished,
    read_description,
    read_exported,
)

SACREBLEU = "sacrebleu:"
"""Prefix of a split that is a test set of sacreBLEU."""
_MAX_LOGGED_LINES = 5
_ANOTHER_NAME = "give these texts another name with --split NAME"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GivenTexts:
    """Test set that is not in the config; line N of each file answers line N of the sources."""

    sources: Path
    references: tuple[Path, ...]
    """At least one file; the first is the target side of the split that `find_split` adds."""


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """Options of an evaluation."""

    metrics: tuple[str | MetricCommand, ...] = ()
    resamples: int = 0
    allow: tuple[str, ...] = ()
    """Reasons in `mt.evaluation.checks.REASONS` that do not stop the evaluation."""
    texts: GivenTexts | None = None
    """Test set for a run, instead of a split of its config."""
    data: DataConfig | None = None
    """Corpora for an imported run, whose config has none."""
    glossary: Path | None = None
    """File with terms to use; their share in the translations is counted."""
    reuses: bool = False
    """Take the translations of an earlier evaluation of the same model, texts and settings."""


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Checked sources and references."""

    name: str
    sources: ScoredText
    """Without lines if files of translations are compared without sources."""
    references: tuple[ScoredText, ...]
    target_language: str
    tokenizer: str
    """BLEU's tokenizer."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Parts of signatures: `test` and `lang` of a test set of sacreBLEU."""


def read_evaluation_set(
    config: Config, split: str, checks: TextChecks, texts: GivenTexts | None
) -> EvaluationSet:
    """Read a split of a run; raise DataError if the checks reject its texts."""
    opened, section = open_split(config.data, split), config.data.split(split)
    source, language = opened.source, opened.direction.target
    tokenizer = checks.check_tokenizer(language, config.evaluation.bleu_tokenizer)
    pairs = tuple(source.pairs())
    names = [f"{source.description}, {side} side" for side in ("source", "target")]
    if isinstance(source, TextPairs):
        names = [str(source.source), str(source.target)]
    further, marks = texts.references[1:] if texts else (), dict[str, str]()
    if isinstance(section, TextSource) and section.sacrebleu:
        further = find_test_set(section.sacrebleu, opened.direction)[2:]
        marks = {"test": section.sacrebleu, "lang": "-".join(map(base_language, opened.direction))}
    right = [ScoredText(names[1], [pair.target for pair in pairs])]
    right += map(ScoredText.of_file, further)
    left = ScoredText(names[0], [pair.source for pair in pairs])
    require_same_lengths(left, right)
    checks.check_sources(left, right, language=language)
    return EvaluationSet(split, left, tuple(right), language, tokenizer, marks)


def evaluate_run(
    run: Path,
    *,
    split: str | None = None,
    overrides: Sequence[str] = (),
    device: str = "auto",
    job: EvaluationJob = EvaluationJob(),
) -> Evaluation:
    """Translate a split with the final model of a run or with an export, and score it.

    Writes the scores, with the hashes of texts and model, and the texts into evaluations/ of the
    run folder, by `name_evaluation`, and updates its model card. Without `split`, the split is
    `test` or the only test split; with `job.texts`, `split` names the given test set. A run that
    has not finished is scored with its best checkpoint, as the signatures say, without a record.

    Raises RunError if there is no model, DataError if the checks reject the texts.
    """
    keep_freed_memory()
    terms, checks = read_terms(job.glossary), TextChecks(job.allow)
    finished = is_exported(run) or is_finished(run)
    config, split, translator = load_for_split(run, split, overrides, device, job)
    test_set = read_evaluation_set(config, split, checks, job.texts)
    sources, references = test_set.sources.lines, test_set.references
    decoding, name = translator.decoding, name_evaluation(run, split, config, overrides, job)
    # Before translation, so that a missing permission does not waste it.
    folder = run / EVALUATIONS_FOLDER
    folder.mkdir(exist_ok=True)
    written = folder / f"{name}.hypotheses.txt"
    inputs = [("hypotheses", written)]
    if job.texts:
        inputs.append(("sources", job.texts.sources))
        inputs += [("references", path) for path in job.texts.references]
    else:
        for side, lines in (("sources", sources), ("references", references[0].lines)):
            inputs.append((side, folder / f"{split}.{side}.txt"))
            _write_lines(inputs[-1][1], lines)
        inputs += [("references", Path(text.name)) for text in references[1:]]
    models = [run, *decoding.ensemble]
    if decoding.quantization != "none" and not is_exported(run):
        models.append(export_folder(run, decoding.quantization))
    for model in models:  # these files have the hashes of weights and tokenizer
        inputs.append(("model", model / (EXPORT_FILE if is_exported(model) else MODEL_FILE)))
        inputs.append(("config", model / CONFIG_FILE))
    inputs += [("glossary", job.glossary)] if job.glossary else []
    origin = {"decoding": decoding.model_dump(mode="json"), "mt": __version__}
    path, is_kept = folder / f"{name}.json", False
    if job.reuses and not terms and path.is_file():
        same = {**origin, "inputs": list(hash_inputs(inputs))}
        is_kept = same.items() <= read_json(path, dict[str, Any]).items()

    translator.use_terms(terms)
    started_at = time.perf_counter()
    translations: tuple[Translation, ...] = ()
    if is_kept:
        _logger.info("%s: the kept translations are compared, of the same model and texts", path)
        texts = list(LineReader(written))
    else:
        translations = translate_pairs(translator, [SentencePair(line, "") for line in sources])
        texts = [translation.text for translation in translations]
    hypotheses = _write_lines(written, texts)  # a program that fails loses none of them
    seconds = time.perf_counter() - started_at
    noted = [line for line in translations if line.notes]
    for line in noted[:_MAX_LOGGED_LINES]:
        log_notes(line)
    if len(noted) > _MAX_LOGGED_LINES:
        more = len(noted) - _MAX_LOGGED_LINES
        _logger.warning("and %d more such lines of %d", more, len(translations))
    checks.check_made(hypotheses, references, language=test_set.target_language)
    evaluation = score_set(test_set, texts, job, checks.forced)
    evaluation = replace(evaluation, label=label_scores(name, len(texts), decoding.search_label))
    if terms:
        uses = [use for line in translations for use in line.terms]
        counts = Counter([*(use.fate for use in uses), *(use.way for use in uses)])
        evaluation = replace(evaluation, terms=counts)
    if not finished:
        return evaluation.marked("model", "checkpoint")

    evaluation = replace(evaluation, inputs=hash_inputs(inputs))
    if is_kept:
        return evaluation
    described = read_exported(run) if is_exported(run) else read_description(run / MODEL_FILE)
    card = render_card(run)
    record = {
        "split": split,
        **evaluation.as_record(),
        "seconds": seconds,
        "weights": described.weights,
        **origin,
    }
    write_json(path, record)
    update_card(run, card)
    return evaluation


def score_set(
    test_set: EvaluationSet, lines: Sequence[str], job: EvaluationJob, forced: str
) -> Evaluation:
    """Return the scores of translations by all metrics of a job, with the marks of the texts."""
    for metric in job.metrics:
        if isinstance(metric, MetricCommand):
            metric.sources = test_set.sources.lines
    scores = evaluate(
        lines,
        [text.lines for text in test_set.references],
        target_language=test_set.target_language,
        tokenizer=test_set.tokenizer,
        metrics=job.metrics,
        resamples=job.resamples,
    )
    for key, value in {**test_set.marks, "forced": forced}.items():
        scores = scores.marked(key, value)
    return scores


def name_evaluation(
    run: Path, split: str, config: Config, overrides: Sequence[str], job: EvaluationJob
) -> str:
    """Return the name of an evaluation's files: the split, and settings that the run has not.

    `test.search=greedy`; characters that a file system may refuse or take for others become `-`,
    and a hash then keeps the names apart.
    """
    tags = config.tag_overrides(split)
    own, changed = (
        load_config(run / CONFIG_FILE, overrides=[*tags, *more]).decoding.model_dump(mode="json")
        for more in ((), overrides)
    )
    settings = {key: value for key, value in changed.items() if value != own[key]}
    settings |= {"glossary": str(job.glossary)} if job.glossary else {}
    text = ",".join(f"{key}={'null' if x is None else x}" for key, x in settings.items())
    if not re.fullmatch(r"[a-z0-9_.,=-]{0,60}", text):
        safe = re.sub(r"[^a-z0-9_.,=-]+", "-", text.lower())[:50]
        text = f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return f"{split}.{text}" if text else split


def translate_pairs(
    translator: Translator, pairs: Sequence[SentencePair]
) -> tuple[Translation, ...]:
    """Translate the sources of pairs, with a progress bar."""
    stream = translator.stream(pair.source for pair in pairs)
    progress = tqdm(stream, "translating", len(pairs), unit="line", leave=False, disable=None)
    return tuple(progress)


def hash_inputs(files: Sequence[tuple[str, Path]]) -> tuple[dict[str, str], ...]:
    """Return the role, path and SHA-256 of each file; a pipe is left out."""
    return tuple(
        {"role": role, "path": str(resolved(path)), "sha256": hash_file(path)}
        for role, path in files
        if path.is_file()
    )


def find_split(
    run: Path, split: str | None, overrides: Sequence[str], job: EvaluationJob
) -> tuple[Config, str]:
    """Return the config of a run, and the name of the split to score.

    The texts of a job, and the test set of a split `sacrebleu:NAME`, are one more test split of the
    config. The tags of `decoding` choose its direction in a multilingual run.
    """
    config = read_config(run, job.data)
    given = split or ""
    test_set = given.removeprefix(SACREBLEU)
    if job.texts or test_set != given:
        chosen = load_config(run / CONFIG_FILE, overrides=overrides)
        require_tag(chosen.tags_to_choose(), overrides, name=run)
        keys: dict[str, Any] = {key: getattr(chosen.decoding, key) for key in TAG_KEYS}
        direction = chosen_direction(config.data, **keys)
        keys |= {f"{side}_language": code for side, code in direction._asdict().items()}
        if job.texts:
            split = name_texts(run, split, job.texts)
            keys |= {"source": str(job.texts.sources), "target": str(job.texts.references[0])}
        else:
            find_test_set(test_set, direction)
            keys["sacrebleu"] = test_set
            split = re.sub(r"[^\w-]+", "-", "-".join([given, *direction]))
        if split in config.data.split_names():
            raise UserError(f"split `{split}` is already in the config of the run; {_ANOTHER_NAME}")
        tests = {**config.data.tests, split: TextSource(**keys)}
        config = config.changed(data=config.data.changed(tests=tests))
    return config, choose_split(config.data, split)


def load_for_split(
    run: Path, split: str | None, overrides: Sequence[str], device: str, job: EvaluationJob
) -> tuple[Config, str, Translator]:
    """Return the config, the split of `find_split`, and the model with the tags of the split."""
    config, split = find_split(run, split, overrides, job)
    open_split(config.data, split)  # a missing file is an error before the model is loaded
    overrides = [*config.tag_overrides(split), *overrides]
    return config, split, Translator.load(run, overrides=overrides, device=device)


def name_texts(run: Path, split: str | None, texts: GivenTexts) -> str:
    """Return the name of a given test set: `split`, or that of the sources up to its first dot.

    Raises UserError if other texts were scored under this name, DataError if a file is missing or
    is a pipe.
    """
    files = [require_regular_file(path) for path in (texts.sources, *texts.references)]
    check_named_once(texts.references)
    name = split or re.sub(r"[^\w-]+", "-", texts.sources.name.split(".")[0]) or "texts"
    if re.fullmatch(r"[\w-]+", name) is None:
        raise UserError(f"split `{name}`: a name has only letters, digits, `-` and `_`")
    folder = run / EVALUATIONS_FOLDER
    for score in sorted(folder.glob(f"{name}.*json")):
        try:
            inputs = read_json(score, dict[str, Any])["inputs"]
            sides = {"sources", "references"}
            texts_scored = [item["sha256"] for item in inputs if item["role"] in sides]
        except (RunError, TypeError, KeyError):
            texts_scored = []
        if texts_scored != [hash_file(file) for file in files]:
            raise UserError(f"{score}: is the score of other texts; {_ANOTHER_NAME}")
    for path in map(resolved, files):
        if path.parent == resolved(folder) and path.name.startswith(f"{name}."):
            raise UserError(f"{path}: the translations would replace this file; {_ANOTHER_NAME}")
    return name


def evaluate_files(
    hypotheses: Path,
    references: Sequence[Path],
    *,
    target_language: str,
    tokenizer: str = "auto",
    sources: Path | None = None,
    job: EvaluationJob = EvaluationJob(),
) -> Evaluation:
    """Score a file of translations against one or more files of references, line by line.

    With `sources`, log the share of translations that are copies of their source.
    Raises DataError if the checks reject the texts, UserError for language, tokenizer or job.
    """
    checks = TextChecks(job.allow)
    check_named_once(references)
    tokenizer = checks.check_tokenizer(target_language, tokenizer)
    scored, *right = (ScoredText.of_file(path) for path in (hypotheses, *references))
    left = ScoredText.of_file(sources) if sources else None
    checks.check_texts(scored, right, left, language=target_language)
    # Other lengths are allowed by name.
    shortest = min(len(text.lines) for text in (scored, *right, *([left] if left else [])))
    lines, originals = scored.lines[:shortest], ScoredText("no sources", ())
    if left:
        originals = replace(left, lines=left.lines[:shortest])
        pairs = zip(lines, left.lines, strict=False)
        copies = [line == source for line, source in pairs if source]
        share = 100 * sum(copies) / max(len(copies), 1)
        message = "note: %s: %d of %d lines (%.1f%%) are identical to their source"
        _logger.warning(message, scored.name, sum(copies), len(copies), share)
    right = [replace(text, lines=text.lines[:shortest]) for text in right]
    name = ", ".join(map(str, references))
    test_set = EvaluationSet(name, originals, tuple(right), target_language, tokenizer)
    scores = score_set(test_set, lines, job, checks.forced)
    inputs = [("hypotheses", hypotheses), *(("references", path) for path in references)]
    inputs += [("sources", sources)] if sources else []
    label = label_scores(f"{hypotheses} against {name}", shortest, "")
    return replace(scores, label=label, inputs=hash_inputs(inputs))


def _write_lines(path: Path, lines: Sequence[str]) -> ScoredText:
    write_text(path, "".join(f"{line}\n" for line in lines))
    return ScoredText(str(path), lines)
