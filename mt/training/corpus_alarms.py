"""Warnings of corpora that one would not train on if one had looked at them."""

import hashlib
import json
import logging
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from mt.data.cache import cache_folder
from mt.data.pairs import Checksums
from mt.data.training_corpora import TrainingCorpus
from mt.doctor.first_look import first_look
from mt.files import write_json
from mt.training.run_folder import RunFolder

_FORMAT = 1
_logger = logging.getLogger(__name__)


def warn_of(
    corpora: Iterable[TrainingCorpus], sums: Mapping[str, Checksums], folder: RunFolder
) -> None:
    """Log what is alarming in the corpora of a run, and where to learn more; raises nothing.

    A corpus is looked at once: what was found lies in the cache, by the checksums of all splits.
    """
    more = f"mt data check {shlex.quote(str(folder.config))}"
    for corpus in corpora:
        try:
            alarms = _looked_at(corpus, _memory(corpus, sums))
        except Exception as error:  # no look is worth a training
            _logger.warning("data.%s: not looked at (%s); see `%s`", corpus.key, error, more)
            continue
        for alarm in alarms:
            _logger.warning("data.%s: %s; see `%s`", corpus.key, alarm, more)


def _looked_at(corpus: TrainingCorpus, memory: Path) -> list[str]:
    """Return what was found when the same text was looked at before, else what is found now."""
    try:
        return list(json.loads(memory.read_bytes())["alarms"])
    except FileNotFoundError:
        alarms = first_look(corpus)
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json(memory, {"alarms": alarms})
        return alarms


def _memory(corpus: TrainingCorpus, sums: Mapping[str, Checksums]) -> Path:
    data = corpus.cleaning.data
    key = [_FORMAT, asdict(sums[corpus.key]), {name: asdict(each) for name, each in sums.items()}]
    key += [data.source_language, data.target_language, corpus.cleaning.fingerprint]
    key += [find_spec("py3langid") is not None]  # without it languages are not looked at
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder() / "looks" / f"{name}.json"
