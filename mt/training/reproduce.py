"""Train a recipe, score its test splits, and hold the scores against what the recipe promises."""

import sys
from collections.abc import Iterator
from pathlib import Path

from mt.config import Config, DataConfig
from mt.config.published import Published
from mt.data.lines import LineReader
from mt.data.pairs import SentencePair
from mt.data.sources import open_source
from mt.data.training_corpora import TrainingCorpus, cleaned_pairs, open_training_corpora
from mt.evaluation.evaluate import evaluate_run
from mt.evaluation.guard import FORMS
from mt.evaluation.job import EvaluationJob
from mt.evaluation.nearest import nearest_targets
from mt.evaluation.scores import Score, evaluate
from mt.evaluation.verdict import MAX_EXAMPLES, Example, Verdict, VerdictRow, verdict
from mt.training.train import train


def reproduce(config: Config, run: Path) -> Verdict:
    """Train the recipe unless that is done, score every test split, and judge the scores."""
    sys.stderr.write(f"{train(config, run)}\n")
    rows, examples = [], []
    corpora = open_training_corpora(config.data)
    for split, source in config.data.tests.items():
        pairs = tuple(open_source(source, config.data).pairs())
        evaluation = evaluate_run(
            run, split=split, device=config.training.device, job=EvaluationJob(allow=FORMS)
        )
        rows.append(
            VerdictRow(
                split=split,
                evaluation=evaluation,
                band=config.evaluation.expected.get(split),
                nearest=_nearest_copy(corpora, pairs, config, data=config.data.of(source)),
                published=tuple(_published(config, split)),
                seed_band=config.evaluation.seed_band,
            )
        )
        examples += _examples(pairs, Path(evaluation.hypotheses))
    return verdict(rows, run=run, examples=examples[:MAX_EXAMPLES])


def _published(config: Config, split: str) -> Iterator[Published]:
    return (each for each in config.evaluation.published if each.split == split)


def _nearest_copy(
    corpora: tuple[TrainingCorpus, ...],
    pairs: tuple[SentencePair, ...],
    config: Config,
    *,
    data: DataConfig,
) -> Score:
    """Return the BLEU of answering with the translation of the nearest training sentence."""
    copies = nearest_targets(
        cleaned_pairs(corpora),
        [pair.source for pair in pairs],
        source_language=data.source_language,
    )
    return evaluate(
        copies,
        [[pair.target for pair in pairs]],
        target_language=data.target_language,
        tokenizer=config.evaluation.bleu_tokenizer,
    ).bleu


def _examples(pairs: tuple[SentencePair, ...], hypotheses: Path) -> list[Example]:
    """Return a few translations from all over the split."""
    translations = list(LineReader(hypotheses))
    step = max(1, len(pairs) // MAX_EXAMPLES)
    return [
        Example(pair.source, pair.target, translation)
        for pair, translation in zip(pairs[::step], translations[::step], strict=True)
    ]
