"""Quality on sentences longer than any in training, for each positional encoding.

    python bench/length_generalisation.py -o docs/images/length-generalisation.svg

A small model of each kind is trained on the pairs of at most 15 tokens a side (`data.max_tokens`),
in a run folder that a second call resumes or reuses. Each model is scored on buckets of pairs, by
the tokens of the longer side. The first bucket has pairs of the validation split as short as those
of training; the others have pairs of the training corpus that were too long for training. Long
sentences are harder for any model, so there is a control with sinusoids: as much training, on pairs
of all lengths, which include the pairs of all buckets but the first.
Tables go to stdout, progress to stderr.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mt.config import Config
from mt.config.loading import load_config
from mt.data.batches import Lengths, collate, split_update
from mt.data.sources import PairSource, SentencePair, open_source
from mt.data.splits import open_split
from mt.data.store import Example
from mt.data.tokenizer import Tokenizer
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator, load_translator
from mt.errors import UserError, did_you_mean, listed, run_reporting_errors
from mt.evaluation.evaluate import score_pairs
from mt.evaluation.scores import Score
from mt.model.positional import POSITIONAL
from mt.plotting.figures import check_picture, line_look, write_picture
from mt.training.step import TrainingPass
from mt.training.trainer import train

RECIPE = Path(__file__).parent.parent / "configs" / "multi30k-en-de.yaml"
OVERRIDES = (
    "data.max_tokens=15",
    "model.d_model=128",
    "model.d_ff=512",
    "model.heads=4",
    "model.encoder_layers=3",
    "model.decoder_layers=3",
    "model.dropout=0.1",
    "training.max_updates=1000",
    "training.target_tokens_per_update=1000",
    "training.learning_rate=2e-3",
    "training.warmup_updates=200",
    "training.validate_every=500",
    "training.patience=null",
    "training.best_metric=loss",
    "training.keep_best=1",
    "training.average=off",
)
ENDS = (20, 25, 30, 40, 60)
MARKERS = "osD^vXP"
CONTROL = "control"

_logger = logging.getLogger("mt.bench")


@dataclass(frozen=True)
class Bucket:
    """Pairs whose longer side has `first` to `last` tokens, EOS included."""

    first: int
    last: int
    pairs: tuple[SentencePair, ...]

    @property
    def name(self) -> str:
        """Range of lengths."""
        return f"{self.first}-{self.last}"


@dataclass(frozen=True)
class Point:
    """Quality of a model on the pairs of a bucket."""

    loss: float
    """Teacher-forced, without smoothing, in nats per target token."""
    bleu: Score
    """Of greedy translations."""
    length: float
    """Tokens of the translations, divided by those of the references."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, score, print the tables and draw the picture."""
    options = _parser().parse_args(arguments)
    if options.output is not None:
        check_picture(options.output)
    configs = {kind: _config(kind, options) for kind in options.kinds}
    configs[CONTROL] = _control_config(options)
    for number, (kind, config) in enumerate(configs.items(), 1):
        _logger.info("%s: training %d of %d", kind, number, len(configs))
        _logger.info("%s", train(config, _run(kind, options)))
    first, config = next(iter(configs.items()))
    tokenizer = load_translator(_run(first, options), device="cpu").tokenizer
    buckets = make_buckets(config, tokenizer, ends=options.ends, most=options.pairs)
    results = {}
    for kind, config in configs.items():
        _logger.info("%s: scoring", kind)
        translator = _whole_lines(_run(kind, options), config)
        if translator.tokenizer.fingerprint != tokenizer.fingerprint:
            raise UserError(
                f"{_run(kind, options)}: the tokenizer differs from {first}'s; set other --runs"
            )
        results[kind] = [_score(translator, bucket, config) for bucket in buckets]
    print(as_markdown(results, buckets))
    if options.output is not None:
        write_picture(options.output, lambda: _draw(results, buckets))
    return 0


def make_buckets(
    config: Config, tokenizer: Tokenizer, *, ends: Sequence[int], most: int
) -> list[Bucket]:
    """Return up to `most` pairs, drawn by the config's seed, for each range of lengths.

    The first range is that of training, with pairs of the validation split. The others end at
    `ends`, with pairs of the training corpus that are too long for training.
    """
    longest, random = config.data.max_tokens, np.random.default_rng(config.seed)
    starts = [1, longest + 1, *(end + 1 for end in ends[:-1])]
    held_out = _with_lengths(open_split(config.data, "valid"), tokenizer)
    left_out = _with_lengths(open_source(config.data.train, config.data), tokenizer)
    buckets = []
    for first, last in zip(starts, [longest, *ends], strict=True):
        pairs = held_out if first == 1 else left_out
        fitting = [pair for pair, length in pairs if first <= length <= last]
        if not fitting:
            raise UserError(f"the corpus has no pair of {first} to {last} tokens; set other --ends")
        chosen = random.permutation(len(fitting))[:most]
        buckets.append(Bucket(first, last, tuple(fitting[number] for number in chosen)))
    return buckets


def as_markdown(results: dict[str, list[Point]], buckets: Sequence[Bucket]) -> str:
    """Return tables of losses, BLEU with its signature, and lengths, with a row for each kind."""
    names = [bucket.name for bucket in buckets]
    header = [_row("positional", names), "| --- |" + " ---: |" * len(names)]
    counts = _row("pairs", [f"{len(bucket.pairs)}" for bucket in buckets])
    signature = next(iter(results.values()))[0].bleu.signature
    tables = {
        "Loss, in nats per target token, by the tokens of the longer side:": _loss_text,
        f"BLEU of greedy translations (`{signature}`):": _bleu_text,
        "Tokens of the translations, divided by those of the references:": _length_text,
    }
    lines = []
    for title, text in tables.items():
        rows = [_row(kind, [text(point) for point in points]) for kind, points in results.items()]
        lines += [title, "", *header, *rows, counts, ""]
    return "\n".join(lines[:-1])


def _loss_text(point: Point) -> str:
    return f"{point.loss:.2f}"


def _bleu_text(point: Point) -> str:
    return f"{point.bleu.value:.1f}"


def _length_text(point: Point) -> str:
    return f"{point.length:.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="picture to draw, .svg or .png")
    parser.add_argument("--config", type=Path, default=RECIPE, help="recipe to start from")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the run folders")
    parser.add_argument("--kinds", nargs="+", default=list(POSITIONAL), type=_kind, metavar="KIND")
    parser.add_argument("--ends", nargs="+", default=ENDS, type=int, help="where buckets end")
    parser.add_argument("--pairs", default=200, type=int, help="most pairs of a bucket")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="set a key of the config"
    )
    return parser


def _kind(name: str) -> str:
    if name not in POSITIONAL:
        near = did_you_mean(name, POSITIONAL) or f"; known: {listed(POSITIONAL)}"
        raise argparse.ArgumentTypeError(f"`{name}` is unknown{near}")
    return name


def _config(kind: str, options: argparse.Namespace) -> Config:
    overrides = [*OVERRIDES, *options.set, f"model.positional={kind}"]
    return load_config(options.config, overrides=overrides)


def _control_config(options: argparse.Namespace) -> Config:
    """Return the config of the control, with the recipe's own limit on lengths."""
    limit = load_config(options.config).data.max_tokens
    overrides = [*OVERRIDES, *options.set, f"data.max_tokens={limit}"]
    return load_config(options.config, overrides=[*overrides, "model.positional=sinusoidal"])


def _run(kind: str, options: argparse.Namespace) -> Path:
    runs: Path = options.runs
    return runs / f"lengths-{kind}"


def _with_lengths(source: PairSource, tokenizer: Tokenizer) -> list[tuple[SentencePair, int]]:
    """Return the pairs of a corpus without empty sides, and the tokens of the longer side."""
    pairs = [pair for pair in source.pairs() if pair.source.strip() and pair.target.strip()]
    return list(zip(pairs, _lengths(pairs, tokenizer).max(axis=1).tolist(), strict=True))


def _lengths(pairs: Sequence[SentencePair], tokenizer: Tokenizer) -> Lengths:
    return np.array([(len(e.source), len(e.target)) for e in _examples(pairs, tokenizer)], np.int32)


def _examples(pairs: Sequence[SentencePair], tokenizer: Tokenizer) -> list[Example]:
    sources = tokenizer.encode_source([pair.source for pair in pairs])
    targets = tokenizer.encode_target([pair.target for pair in pairs])
    return [
        Example(number, np.array(source, np.int32), np.array(target, np.int32))
        for number, (source, target) in enumerate(zip(sources, targets, strict=True))
    ]


def _whole_lines(run: Path, config: Config) -> Translator:
    """Return a run's greedy translator, which never splits a line."""
    loaded = load_translator(
        run,
        overrides=["decoding.search=greedy", "decoding.split_sentences=off"],
        device=config.training.device,
    )
    return Translator(
        loaded.engine,
        loaded.tokenizer,
        loaded.decoding,
        longest_source=sys.maxsize,
        direction=loaded.direction,
    )


def _score(translator: Translator, bucket: Bucket, config: Config) -> Point:
    scores = score_pairs(
        translator,
        bucket.pairs,
        target_language=config.data.target_language,
        tokenizer=config.evaluation.bleu_tokenizer,
    )
    texts = [translation.text for translation in scores.translations]
    made = sum(map(len, translator.tokenizer.encode_target(texts)))
    wanted = int(_lengths(bucket.pairs, translator.tokenizer)[:, 1].sum())
    return Point(_loss(translator, bucket, config), scores.evaluation.bleu, made / wanted)


@torch.inference_mode()
def _loss(translator: Translator, bucket: Bucket, config: Config) -> float:
    engine = translator.engine
    assert isinstance(engine, TorchEngine)
    engine.model.eval()
    examples = _examples(bucket.pairs, translator.tokenizer)
    batches = split_update(
        np.arange(len(examples)),
        _lengths(bucket.pairs, translator.tokenizer),
        max_tokens_per_batch=config.training.max_tokens_per_batch,
        ranks=1,
    )[0]
    plain_loss = TrainingPass(engine.model, label_smoothing=0.0)
    nll, tokens = 0.0, 0
    for indices in batches:
        batch = collate([examples[index] for index in indices]).to(engine.device)
        sums = plain_loss(batch)
        nll, tokens = nll + float(sums.nll), tokens + sums.tokens
    return nll / tokens


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([name, *cells])} |"


def _draw(results: dict[str, list[Point]], buckets: Sequence[Bucket]) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    loss, bleu, length = figure.subplots(1, 3)
    loss.set_title("Loss (nats per target token)")
    bleu.set_title("BLEU of greedy translations")
    length.set_title("Tokens / those of the references")
    names = [bucket.name for bucket in buckets]
    for number, (kind, points) in enumerate(results.items()):
        style = {**line_look(number), "marker": MARKERS[number % len(MARKERS)], "markersize": 5}
        if kind == CONTROL:
            style |= {
                "color": "#aaaaaa",
                "linestyle": "-",
                "linewidth": 4,
                "marker": "",
                "zorder": 1,
            }
        loss.plot(names, [point.loss for point in points], label=kind, **style)
        bleu.plot(names, [point.bleu.value for point in points], label=kind, **style)
        length.plot(names, [point.length for point in points], label=kind, **style)
    for axes in (loss, bleu, length):
        _finish(axes)
    length.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _finish(axes: Axes) -> None:
    axes.set_xlabel("tokens of the longer side")
    axes.axvspan(-0.5, 0.5, color="#eeeeee", zorder=0)
    axes.text(
        *(-0.4, 0.03, "as in training"),
        transform=axes.get_xaxis_transform(),
        rotation=90,
        color="#555555",
    )
    axes.set_xlim(left=-0.5)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="x", rotation=45)
    axes.grid(axis="y", color="#e5e5e5")
    axes.set_axisbelow(True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("mt").setLevel(logging.INFO)
    sys.exit(run_reporting_errors(main))
