"""Train 50 updates by another commit and by this checkout, and compare them to the digit.

    python bench/compare_commits.py BASE [RECIPE]

Both train RECIPE, by default configs/quickstart.yaml of this checkout, on the CPU with this Python
and its packages. The exit status is 1 at the first difference.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SETTINGS = ("max_updates=50", "validation_pairs=20", "log_every=1", "device=cpu", "export=off")
KEYS = ("update", "epoch", "target_tokens", "learning_rate", "loss", "nll", "gradient_norm")


def train(checkout: Path, recipe: str, scratch: Path) -> list[dict[str, Any]]:
    """Return the numbers of each update; exit with the status of a training that fails."""
    command = [sys.executable, "-P", "-m", "mt", "train", recipe, "--run", str(scratch / "run")]
    for setting in SETTINGS:
        command += ["--set", f"training.{setting}"]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "MT_CACHE": str(scratch / "cache")}
    status = subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr).returncode
    if status:
        sys.exit(status)
    journal = (scratch / "run/metrics.jsonl").read_text(encoding="utf-8")
    events = [json.loads(line) for line in journal.splitlines()]
    return [{key: event[key] for key in KEYS} for event in events if event["event"] == "train"]


def main(base: str, recipe: str = "configs/quickstart.yaml") -> None:
    """Print the first number that differs, or the last loss."""
    git = ["git", "-C", str(ROOT), "worktree"]
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        scratch = Path(folder)
        if subprocess.run([*git, "add", "--quiet", "--detach", scratch / "base", base]).returncode:
            sys.exit(2)
        try:
            before = train(scratch / "base", recipe, scratch / "1")
            now = train(ROOT, recipe, scratch / "2")
        finally:
            subprocess.run([*git, "remove", "--force", scratch / "base"], check=True)
    for old, new in zip(before, now, strict=True):
        for key in KEYS:
            if old[key] != new[key]:
                sys.exit(f"update {old['update']}: {key} {old[key]} by {base}, {new[key]} here")
    print(f"{len(now)} updates equal those of {base}, to loss {now[-1]['loss']} of the last")


if __name__ == "__main__":
    main(*sys.argv[1:])
