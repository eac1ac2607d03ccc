import json
import math
import shutil
from pathlib import Path

from mt.compare.differences import Curve, Difference, find_differences, read_curves
from mt.compare.systems import System


def _system(folder: Path | None, **decoding: object) -> System:
    return System(str(folder), (), folder, decoding)


def test_differences_of_config_decoding_and_data(finished_run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(finished_run, tmp_path / "other"))
    config = (other / "config.yaml").read_text(encoding="utf-8")
    assert "warmup_updates: 10\n" in config
    config = config.replace("warmup_updates: 10\n", "warmup_updates: 12\n")
    (other / "config.yaml").write_text(config, encoding="utf-8")
    sums = json.loads((other / "corpora.json").read_bytes())
    sums["train"]["source"] = "f" * 64
    (other / "corpora.json").write_text(json.dumps(sums))
    systems = [_system(finished_run, beam=2), _system(None), _system(other, beam=4)]
    own = json.loads((finished_run / "corpora.json").read_bytes())["train"]["source"]
    assert find_differences(systems) == [
        Difference("config", "training.warmup_updates", ("10", None, "12")),
        Difference("config", "decoding.beam", ("2", None, "4")),
        Difference("data", "train: sha256 of the source side", (own, None, "f" * 64)),
    ]
    assert find_differences(systems[:2]) == []
    for unknown in ("environment.json", "corpora.json"):
        (other / unknown).unlink()
    assert [each.group for each in find_differences(systems)] == ["config"] * 2


def test_curves_are_read_from_the_journal(finished_run: Path, tmp_path: Path) -> None:
    journal = tmp_path / "metrics.jsonl"
    lines = [
        {"event": "train", "update": 5, "loss": 9.0},
        {"event": "validation", "update": 10, "loss": 3.5, "bleu": 12.0},
        {"event": "validation", "update": 20, "loss": 3.0},
        {"event": "validation", "update": 30, "loss": math.nan, "bleu": 0.0},
    ]
    journal.write_text("\n".join(map(json.dumps, lines)) + '\n{"event": "valid')
    curves = read_curves([_system(None), _system(tmp_path), _system(finished_run)])
    assert curves[:2] == [
        Curve(1, "bleu", ((10, 12.0), (30, 0.0))),
        Curve(1, "loss", ((10, 3.5), (20, 3.0))),
    ]
    assert [(each.system, each.key) for each in curves[2:]] == [(2, "bleu"), (2, "loss")]
    assert [update for update, _ in curves[3].points] == [10, 20, 30, 40]
