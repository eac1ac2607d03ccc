"""Warnings of corpora that one would not train on if one had looked at them."""

import logging
import shlex
from collections.abc import Iterable

from mt.data.training_corpora import TrainingCorpus
from mt.doctor.first_look import first_look
from mt.training.run_folder import RunFolder

_logger = logging.getLogger(__name__)


def warn_of(corpora: Iterable[TrainingCorpus], folder: RunFolder) -> None:
    """Log what is alarming in the corpora of a run, and where to learn more; raises nothing."""
    more = f"mt data check {shlex.quote(str(folder.config))}"
    for corpus in corpora:
        try:
            alarms = first_look(corpus)
        except Exception as error:  # no look is worth a training
            _logger.warning("data.%s: not looked at (%s); see `%s`", corpus.key, error, more)
            continue
        for alarm in alarms:
            _logger.warning("data.%s: %s; see `%s`", corpus.key, alarm, more)
