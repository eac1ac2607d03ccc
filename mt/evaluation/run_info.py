"""Record of a run for `mt info`, and its model card, README.md of the run folder."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from safetensors import safe_open

from mt.config import Config, DataConfig, DecodingConfig, ModelConfig
from mt.config.data import HeldOutSource, HubSource, tags_as_text, trained_directions, trained_tags
from mt.config.loading import load_config
from mt.data.corpus_files import LONGEST_LINE
from mt.data.tokenizer import Tokenizer
from mt.errors import RunError, UserError, did_you_mean, listed
from mt.files import check_sha256, read_json, write_text
from mt.languages import base_language
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
    Provenance,
    check_finished,
    check_run_folder,
    is_exported,
    is_finished,
    read_description,
    read_verified_export,
)

CARD_FILE = "README.md"
_PLACE_KEYS = ("source", "target", "sacrebleu", "path", "name", "revision")
"""Keys of a corpus that say where it is."""
_logger = logging.getLogger(__name__)


def read_config(run: Path, data: DataConfig | None = None) -> Config:
    """Return the config of a run or export; raise RunError if it is missing.

    An imported run has no corpora; `data` takes their place.
    """
    if not (run / CONFIG_FILE).is_file():
        check_finished(run)  # raises RunError, which names the missing file
    config = load_config(run / CONFIG_FILE)
    return config.changed(data=data) if data and not config.data.has_corpora else config


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


def describe_architecture(model: ModelConfig) -> dict[str, str]:
    """Return the variant and the sizes of a model as text."""
    return {
        "variant": f"{model.residual} {model.norm}, {model.feed_forward}, {model.positional}",
        "layers": f"{model.encoder_layers} encoder, {model.decoder_layers} decoder",
        "widths": f"d_model {model.d_model}, d_ff {model.d_ff}, {model.heads} heads",
        "tied embeddings": str(model.tie_embeddings),
    }


def list_rows(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the values of a record as text, each with its keys; empty ones are left out."""
    for key, value in record.items():
        name = key.replace("_", " ")
        if isinstance(value, Mapping):
            yield from ((f"{name} {inner}", text) for inner, text in list_rows(value))
        elif isinstance(value, list | tuple):
            if value:
                yield name, ", ".join(map(str, value))
        elif value not in (None, ""):
            yield name, f"{value:,}" if type(value) is int else str(value)


def read_info(run: Path) -> dict[str, Any]:
    """Return the record of a finished or unfinished run, or of an export.

    `corpora` and `tokenizer` have the hashes of the training, `model` and `export` those of the
    weights; `model` is None if training has not finished. A score in `scores` is `current` if it
    belongs to the weights in the folder, and its `overrides` differ from the config. `experiments`
    has those with other settings than the run's.

    Raises RunError, naming the file, if the tokenizer or the weights do not match their recorded
    hashes, and if a record cannot be read.
    """
    check_run_folder(run)
    config = load_config(run / CONFIG_FILE, as_recorded=True)
    data = config.data
    corpora: CorpusRecord = {}
    if os.path.lexists(run / CORPORA_FILE):
        corpora = read_json(run / CORPORA_FILE, CorpusRecord)
    exported = read_verified_export(run) if is_exported(run) else None
    updates = [event.get("update", 0) for event in read_events(run / JOURNAL_FILE)]
    model = None
    counts: Mapping[str, int] = {}
    weights, fingerprint = None, corpora.get("tokenizer", {}).get("fingerprint")
    if exported:
        weights, fingerprint = exported.weights, exported.tokenizer
    elif os.path.lexists(run / MODEL_FILE) or os.path.lexists(run / WEIGHTS_FILE):
        check_finished(run)
        provenance = read_json(run / MODEL_FILE, Provenance)
        described = read_description(run / MODEL_FILE)
        weights, fingerprint, counts = described.weights, described.tokenizer, provenance.pairs
        check_sha256(run / WEIGHTS_FILE, weights, MODEL_FILE)
        with safe_open(run / WEIGHTS_FILE, framework="numpy") as file:  # tied: written once
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
        updates = [provenance.updates]
        model = {
            "parameters": sum(map(prod, shapes)),
            "bytes": (run / WEIGHTS_FILE).stat().st_size,
            "sha256": weights,
            "longest_source": described.longest_source,
            "updates": provenance.updates,
            "averaged_updates": list(provenance.averaged_updates),
            "validation": provenance.score,
        }

    tokenizer = None
    if fingerprint is not None or any((run / TOKENIZER_FOLDER).glob("*.json")):
        read = Tokenizer.load(
            run / TOKENIZER_FOLDER, None if fingerprint is None else str(fingerprint)
        )
        tokenizer = {
            "algorithm": read.source.algorithm,
            "vocabulary": "joint" if read.source is read.target else "separate",
            "source_size": read.source_size,
            "target_size": read.target_size,
            "fingerprint": read.fingerprint,
        }

    splits: dict[str, Any] = {}
    sources = {**data.train_corpora(), "valid": data.valid}
    sources.update({f"tests.{name}": source for name, source in data.tests.items()})
    for split, source in sources.items():
        named, sums = source.model_dump(mode="json"), corpora.get(split, {})
        places = [str(named[key]) for key in _PLACE_KEYS if named.get(key) is not None]
        if isinstance(source, HeldOutSource):
            places = [f"held out of {', '.join(data.matching_corpora(source))}"]
        splits[split] = {
            "corpus": named.get("corpus"),
            "places": places,
            "pairs": counts.get(split),
            "sha256_source": sums.get("source"),
            "sha256_target": sums.get("target"),
        }

    scores: dict[str, Any] = {}
    experiments: dict[str, Any] = {}
    defaults = config.decoding.model_dump(mode="json")
    for path in sorted((run / EVALUATIONS_FOLDER).glob("*.json")):
        score = read_json(path, dict[str, Any])
        try:
            settings = score["decoding"].items()
            is_own = path.stem == score["split"]
            (scores if is_own else experiments)[path.stem] = {
                "sentences": int(score["sentences"]),
                "search": DecodingConfig.model_construct(**score["decoding"]).search_label,
                "BLEU": f"{score['bleu']['score']:.2f} ({score['bleu']['signature']})",
                "chrF2": f"{score['chrf']['score']:.2f} ({score['chrf']['signature']})",
                "overrides": [f"{key}={x}" for key, x in settings if defaults.get(key) != x],
                "current": score["weights"] == weights,
            }
        except (KeyError, TypeError, AttributeError, ValueError):
            raise RunError(f"{path}: damaged, or not written by mt") from None

    environment: dict[str, Any] = {}
    if os.path.lexists(run / ENVIRONMENT_FILE):
        environment = read_json(run / ENVIRONMENT_FILE, dict[str, Any])
    return {
        "run": str(run),
        "state": "exported" if exported else "finished" if model else "unfinished",
        "languages": [str(direction) for direction in trained_directions(data)],
        "tags": list(tags_as_text(trained_tags(data))),
        "updates": updates[-1] if updates else 0,
        "corpora": splits,
        "architecture": describe_architecture(config.model),
        "tokenizer": tokenizer,
        "model": model,
        "export": asdict(exported) if exported else None,
        "scores": scores,
        "experiments": experiments,
        "environment": environment,
        "config": config.model_dump(mode="json", by_alias=True),
    }


def update_card(run: Path, previous: str | None) -> None:
    """Write README.md, unless it exists and is not `previous`, the card before the change."""
    path = run / CARD_FILE
    try:
        card = render_card(run)
        if card and path.exists() and path.read_text("utf-8", errors="replace") != previous:
            _logger.info("%s: is not the card of mt, so it is kept; delete it for a new one", path)
        elif card:
            write_text(path, card)
    except OSError as error:
        _logger.warning("%s: the model card was not written (%s)", path, error)


_CARD = """\
---
{header}
---

# Translation {directions}

A Transformer, {made}.

```sh
mt {command}
```

## Record

{rows}

## Limits

- Text of another kind, domain or spelling than in training is translated worse than the scores \
suggest.
- A line of more than {longest} tokens, the longest in training, is split into parts that are \
translated independently.
- Names, numbers, offensive or private text, bias and the licences of the corpora have not been \
checked. Have important translations reviewed.
"""


def render_card(
    run: Path, library: str = "", license: str | None = None, *, with_scores: bool = True
) -> str | None:
    """Return the card of a finished run as Markdown; None for another folder or, logged, an error.

    Rendered before a change of the run, it shows whether README.md was edited: see `update_card`.
    `library` and `license` are those of an export, in the YAML header of the Hugging Face hub:
    https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
    """
    try:
        if not is_finished(run):
            return None
        info, config = read_info(run), load_config(run / CONFIG_FILE)
    except (UserError, OSError) as error:
        _logger.warning("%s: no model card (%s)", run, error)
        return None
    data = config.data
    directions = trained_directions(data)
    codes = dict.fromkeys(code for pair in directions for code in (pair.source, pair.target))
    tags = [f"decoding.{key}={next(iter(of))}" for key, of in config.tags_to_choose().items()]
    parts = {key: info[key] for key in ("tags", "corpora", "architecture", "tokenizer", "model")}
    scores = info["scores"] if with_scores else {}
    parts["scores"] = {key: score for key, score in scores.items() if score["current"]}
    rows = [(key, text.replace("|", r"\|")) for key, text in list_rows(parts)]
    table = [("", ""), ("---", "---"), *rows]
    results: list[dict[str, Any]] = []
    for split in filter(parts["scores"].get, data.tests):
        score, source = parts["scores"][split], data.tests[split]
        place = source.name if isinstance(source, HubSource) else split
        dataset = {"type": place, "name": split}
        results.append({"task": {"type": "translation"}, "dataset": dataset, "metrics": []})
        for name, kind in (("BLEU", "bleu"), ("chrF2", "chrf")):
            value, _, signature = score[name].partition(" ")
            how = {"signature": signature.strip("()"), "search": score["search"]}
            metric = {"type": kind, "name": name, "value": float(value), "args": how}
            results[-1]["metrics"].append(metric)
    index = [{"name": Path(info["run"]).resolve().name, "results": results}] if results else None
    corpora = [*data.train_corpora().values(), data.valid]
    fields = {
        "language": [*dict.fromkeys(map(base_language, codes))],
        "pipeline_tag": "translation",
        "library_name": library,
        "license": license,
        "datasets": [*dict.fromkeys(of.name for of in corpora if isinstance(of, HubSource))],
        "model-index": index,
    }
    date = info["environment"].get("started_at", "")[:10]
    command = "translate . input.txt --output output.txt"
    command += "".join(f" --set '{tag}'" for tag in tags)
    header = {key: json.dumps(value, ensure_ascii=False) for key, value in fields.items() if value}
    return _CARD.format(
        header="\n".join(f"{key}: {value}" for key, value in header.items()),
        directions=" and ".join(f"from `{pair.source}` to `{pair.target}`" for pair in directions),
        made=f"trained with mt on {date}" if date else "imported into mt",
        command="import . --run run" if library == "transformers" else command,
        rows="\n".join(f"| {key} | {text} |" for key, text in table),
        longest=info["model"]["longest_source"],
    )
