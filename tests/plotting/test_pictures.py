"""Curves of trainings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mt.errors import UserError
from mt.plotting.pictures import draw_curves, plot_trainings, read_points


def test_a_resumed_run_has_each_update_once(tmp_path: Path) -> None:
    def point(update: int, loss: float | None) -> list[dict[str, Any]]:
        scores = {
            "bleu": 10 * update,
            "chrf": 5,
            "loss": loss,
            "label": f"valid, {40 + update} pairs",
        }
        train = {"event": "train", "update": update, "nll": loss, "learning_rate": 0.1 / update}
        return [train, {"event": "validation", "update": update, **scores}]

    first = [{"event": "start", "update": 0}, *point(1, 7.0), *point(2, 6.0), *point(3, 5.0)]
    resumed = [{"event": "resume", "update": 1}, *point(2, 6.5), *point(4, None)]
    lines = [json.dumps(event) for event in (*first, *resumed, {"event": "final", "loss": 0})]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    (tmp_path / "config.yaml").touch()
    loss, scores, rate = draw_curves({tmp_path: read_points(tmp_path)}).axes
    curves = [
        (line.get_label(), np.array(line.get_xydata()).tolist())
        for line in loss.lines + scores.lines
    ]
    assert curves[:3] == [
        ("training", [[1, 7], [2, 6.5]]),
        ("validation", [[1, 7], [2, 6.5]]),
        ("BLEU: valid, 44 pairs", [[1, 10], [2, 20], [4, 40]]),
    ]
    assert np.array(rate.lines[0].get_ydata()).tolist() == [0.1, 0.05, 0.025]
    with pytest.raises(UserError, match="--output"):
        plot_trainings([tmp_path, tmp_path])
    (tmp_path / "metrics.jsonl").write_text(lines[0])
    with pytest.raises(UserError, match="has no losses yet"):
        plot_trainings([tmp_path])
