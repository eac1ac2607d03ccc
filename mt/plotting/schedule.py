"""Plot of the learning rate over the updates of one or several configs."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mt.config import Config
from mt.config.loading import automatic_keys
from mt.errors import UserError
from mt.plotting.figures import check_picture, legend_beside, line_look, write_picture
from mt.training.optimizer import learning_rate

_NEEDED = ("training.learning_rate", "training.schedule", "training.warmup_updates")
_POINTS = 1000
_WARMUPS_SHOWN = 5


def plot_schedules(configs: Mapping[str, Config], output: Path, *, updates: int | None) -> Path:
    """Draw the schedule of each config, by name, over `updates` updates; return `output`.

    By default the axis ends with the longest training. A config without `training.max_updates`
    counts as `training.decay_updates` long, or else five times its warm-up. Raises UserError for a
    config whose rate is chosen by the training.
    """
    check_picture(output)
    for name, config in configs.items():
        if unknown := [key for key in automatic_keys(config) if key in _NEEDED]:
            raise UserError(
                f"{name}: has no `{unknown[0]}`, which the training chooses; name the config.yaml "
                f"of a run folder, or give it: --set {unknown[0]}=VALUE"
            )
    last = updates or max(last_update(config) for config in configs.values())
    write_picture(output, lambda: _draw(configs, last))
    return output


def rates(config: Config, updates: NDArray[np.int64]) -> list[float]:
    """Return the learning rate of each update, counted from 1."""
    training, d_model = config.training, config.model.d_model
    return [learning_rate(int(update), training, d_model) for update in updates]


def shown_updates(config: Config, last: int) -> NDArray[np.int64]:
    """Return evenly spread updates, and those where warm-up and decay end."""
    training = config.training
    spread = np.linspace(1, last, min(last, _POINTS)).round().astype(np.int64)
    corners = np.clip([training.warmup_updates, training.decay_updates or last], 1, last)
    return np.unique(np.append(spread, corners))


def last_update(config: Config) -> int:
    """Return the update at which the plot of a config ends by default."""
    training = config.training
    usual = max(_WARMUPS_SHOWN * training.warmup_updates, 100)
    return training.max_updates or training.decay_updates or usual


def _draw(configs: Mapping[str, Config], last: int) -> Figure:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="update", ylabel="learning rate")
    axes.set_title("Learning rate by update")
    for number, (name, config) in enumerate(configs.items()):
        updates = shown_updates(config, last)
        axes.plot(
            updates,
            rates(config, updates),
            label=f"{name}\n{config.training.schedule}, warm-up {config.training.warmup_updates:,}",
            **line_look(number),
        )
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    axes.grid(color="#e5e5e5")
    axes.set_axisbelow(True)
    legend_beside(axes)
    return figure
