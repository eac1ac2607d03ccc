"""Model card: README.md of a run folder."""

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mt.config.data import tags_as_text, trained_directions, trained_tags
from mt.errors import UserError
from mt.evaluation.run_info import ModelInfo, RunInfo, read_info
from mt.files import read_bytes, write_text

CARD_FILE = "README.md"
_MARK = re.compile(r"<!-- mt writes this file anew unless it is edited: ([0-9a-f]{64}) -->\n?\Z")
"""Last line, with the SHA-256 of the text before it."""

_logger = logging.getLogger(__name__)


def refresh_card(run: Path) -> None:
    """Write README.md into the folder of a finished run, unless a user wrote or edited it.

    Errors are only logged.
    """
    path = run / CARD_FILE
    try:
        if path.exists() and not _is_unedited(path):
            _logger.info("%s: was edited, so it is not updated", path)
            return
        info = read_info(run)
        if info.model is None:
            return
        card = model_card(info, info.model)
        sha256 = hashlib.sha256(card.encode()).hexdigest()
        write_text(path, f"{card}<!-- mt writes this file anew unless it is edited: {sha256} -->\n")
    except (UserError, OSError) as error:
        _logger.warning("%s: the model card was not written (%s)", path, error)


def _is_unedited(path: Path) -> bool:
    text = read_bytes(path, limit=1 << 20).decode("utf-8", errors="replace")
    mark = _MARK.search(text)
    return bool(mark and hashlib.sha256(text[: mark.start()].encode()).hexdigest() == mark[1])


def model_card(info: RunInfo, model: ModelInfo) -> str:
    """Return the card of a finished run as Markdown, with the YAML header of model hubs."""
    directions = trained_directions(info.config.data)
    codes = dict.fromkeys(code for each in directions for code in (each.source, each.target))
    languages = ", ".join(f'"{code}"' for code in codes)
    named = " and ".join(f"from `{each.source}` to `{each.target}`" for each in directions)
    started_at = info.environment.started_at
    date = f", last started on {started_at[:10]}" if started_at else ""
    hashes = [("weights", _code(model.sha256))]
    if info.tokenizer:
        hashes.append(("tokenizer, its fingerprint", _code(info.tokenizer.fingerprint)))
    sections = (
        f"---\nlanguage: [{languages}]\npipeline_tag: translation\n---",
        f"# Translation {named}",
        f"A Transformer of {model.parameters:,} parameters, trained with mt "
        f"{info.environment.mt or ''}".rstrip()
        + f"{date}.",
        "## Use",
        _usage(info),
        "## Data",
        _table([("split", "pairs", "corpus", "SHA-256 of source, target"), *_corpora(info)]),
        "## Model and training",
        _table([("", ""), *_settings(info, model)]),
        "## Scores",
        f"On the validation pairs, by {info.config.training.validation_search} search, at the end "
        f"of training: {model.validation}.",
        *_score_table(info),
        "## Limits",
        "\n".join(f"- {limit}" for limit in _limits(info, model)),
        "## Hashes",
        _table([("", "SHA-256"), *hashes]),
    )
    return "\n\n".join(sections) + "\n\n"


def _usage(info: RunInfo) -> str:
    tests = info.config.data.split_names()
    split = tests[1] if len(tests) > 1 else tests[0]
    config = info.config
    tags = [f"decoding.{key}={next(iter(of))}" for key, of in config.tags_to_choose().items()]
    option = "".join(f" --set '{tag}'" for tag in tags)
    named = ", ".join(f'"{tag}"' for tag in tags)
    argument = f", overrides=[{named}]" if tags else ""
    return f"""In this folder:

```sh
mt translate . input.txt --output output.txt{option}
mt evaluate . --split {split}
mt info .
```

```python
from mt import Translator
translator = Translator.load("."{argument})
print(translator.translate(["A sentence.", "Another one."]))
```"""


def _corpora(info: RunInfo) -> Iterator[Sequence[str]]:
    for corpus in info.corpora:
        named = [corpus.name] if corpus.name else []
        places = ", ".join(map(_code, [*named, *corpus.places]))
        sums = [_code(each[:12]) for each in (corpus.sha256_source, corpus.sha256_target) if each]
        pairs = "" if corpus.pairs is None else f"{corpus.pairs:,}"
        yield corpus.split, pairs, places, " ".join(sums)


def _settings(info: RunInfo, model: ModelInfo) -> Iterator[Sequence[str]]:
    shape, training, tokenizer = info.config.model, info.config.training, info.tokenizer
    assert tokenizer is not None
    yield "variant", f"{shape.residual} {shape.norm}, {shape.feed_forward}, {shape.positional}"
    yield "layers", f"{shape.encoder_layers} encoder, {shape.decoder_layers} decoder"
    yield "widths", f"d_model {shape.d_model}, d_ff {shape.d_ff}, {shape.heads} heads"
    yield "dropout, label smoothing", f"{shape.dropout}, {training.label_smoothing}"
    sizes = f"{tokenizer.source_size:,} source and {tokenizer.target_size:,} target tokens"
    yield "tokenizer", f"{tokenizer.algorithm}, {tokenizer.vocabulary}, {sizes}"
    averaged = len(model.averaged_updates)
    mean = f", mean of {averaged} checkpoints" if averaged > 1 else ""
    tokens = f"{training.target_tokens_per_update:,} target tokens"
    yield "updates", f"{model.updates:,} of {tokens}{mean}"
    schedule = f"{training.schedule}, {training.warmup_updates:,} to warm up"
    yield "learning rate", f"{training.learning_rate} ({schedule})"
    if tags := tags_as_text(trained_tags(info.config.data)):
        yield "tags", ", ".join(tags)
    if training.init_from:
        yield "initial weights", _code(str(training.init_from))
    yield "seed", str(info.config.seed)
    decoding = info.config.decoding.model_dump(mode="json", exclude_none=True)
    yield "decoding", ", ".join(f"{key} {value}" for key, value in decoding.items())


def _score_table(info: RunInfo) -> Iterator[str]:
    """Yield the table of test scores, if there are scores of the current weights."""
    rows = []
    for scored in (each for each in info.scores if each.current):
        how = ", ".join(scored.overrides) or "as above"
        for score in (scored.bleu, scored.chrf):
            value, signature = f"{score.value:.2f}", _code(score.signature)
            rows.append((scored.split, str(scored.sentences), score.name, value, signature, how))
    if rows:
        yield _table([("split", "sentences", "metric", "score", "signature", "decoding"), *rows])


def _limits(info: RunInfo, model: ModelInfo) -> Iterator[str]:
    data, config = info.config.data, info.config
    train = info.corpora[0]
    pairs = "" if train.pairs is None else f" {train.pairs:,} pairs of"
    yield (
        f"The model was trained on{pairs} the corpus above only: text of another kind, domain or "
        "spelling is translated worse than the scores suggest."
    )
    if model.too_long is not None and model.empty is not None:
        yield (
            f"Left out of training: {model.too_long:,} pairs with more than "
            f"{data.max_tokens} tokens on a side, {model.empty:,} with an empty side."
        )
    yield (
        f"A line of more than {model.longest_source} tokens, the longest in training, is split "
        "into parts that are translated independently."
    )
    if config.tokenizer.byte_fallback == "off":
        yield "Characters that do not occur in the training text are neither read nor written."
    if not any(scored.current for scored in info.scores):
        yield "No test split has been scored, only the pairs that selected the checkpoint."
    yield (
        "Names, numbers, offensive or private text, bias and the licences of the corpora have not "
        "been checked. Have important translations reviewed."
    )


def _code(text: str) -> str:
    return f"`{text}`"


def _table(rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the first row is the header."""
    escaped = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)
    lines = ["| " + " | ".join(row) + " |" for row in escaped]
    columns = lines[0].replace("\\|", "").count("|") - 1
    return "\n".join([lines[0], "|" + " --- |" * columns, *lines[1:]])
