"""Model card: README.md of a run folder."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mt.config.data import tags_as_text, trained_directions, trained_tags
from mt.errors import UserError
from mt.evaluation.run_info import ModelInfo, RunInfo, read_info
from mt.files import write_text
from mt.runs import is_finished

CARD_FILE = "README.md"
_logger = logging.getLogger(__name__)


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
