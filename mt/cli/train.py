"""Commands `mt init`, `mt train`, `mt reproduce` and `mt average`."""

import logging
import os
import re
import shlex
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from mt.cli.options import Device, Overrides, RunArgument, load, refuse_given
from mt.errors import UserError
from mt.files import default_run
from mt.runs import CONFIG_FILE, is_finished

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="Config, a YAML file.")]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", metavar="DIR", help="Run folder; default: runs/NAME-OF-CONFIG."),
]
_logger = logging.getLogger(__name__)
SourceLanguage = Annotated[
    str | None, typer.Option("--source-language", metavar="CODE", help="Source language, as zh.")
]
TargetLanguage = Annotated[
    str | None, typer.Option("--target-language", metavar="CODE", help="Target language, as en.")
]


def init(
    corpora: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS...",
            help="Source file and target file, line by line, or one .tsv, .tmx, .xliff, .po, "
            ".jsonl or .parquet file, a folder, or hub:OWNER/NAME@COMMIT; several form a mixture.",
        ),
    ],
    valid: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Validation pairs; give it twice for two text files."),
    ] = None,
    test: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Test pairs, in the same way; repeatable."),
    ] = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time for the training, such as 30m or 2h.")
    ] = None,
    size: Annotated[
        Literal["tiny", "small", "base", "big"] | None,
        typer.Option(help="Size of the model; default: the best for the corpus and the time."),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="RUN", help="Adapt this finished run to the corpus instead."
        ),
    ] = None,
    purpose: Annotated[
        Literal["huggingface", "bergamot"] | None,
        typer.Option("--for", help="Write the form of model that this export needs."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", writable=True, help="Config to write; default: NAME-OF-CORPUS.yaml."
        ),
    ] = None,
) -> None:
    """Write a config for a corpus, with cleaning and settings chosen for it.

    Languages come from the file names, such as train.zh and train.en, or from the text. Without
    --valid or --test, pairs of the corpus are held out of the training for them.

    With --from, the config adapts a run to the corpus, together with a sample of its old pairs,
    and its test splits show what it loses.
    """
    if start is not None:
        refuse_given({"--size": size, "--for": purpose}, "is for a new model; --from names a run")
    from mt.export import bergamot, marian
    from mt.recipes.init import Request, write_new_config

    forms = {"huggingface": marian.FORM, "bergamot": bergamot.FORM}
    request = Request(
        train=corpora,
        valid=valid or (),
        test=test or (),
        source_language=source_language,
        target_language=target_language,
        budget=budget,
        size=size,
        form={"feed_forward": "relu"} | forms[purpose] if purpose else {},
        start=start,
        output=output,
    )
    typer.echo(write_new_config(request))


def train(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG|RUN", help="Config, or run folder to resume.")
    ],
    run: RunOption = None,
    overrides: Overrides = None,
) -> None:
    """Train a model, or resume a stopped run.

    docs/keys.md lists the config keys.
    """
    began_at = time.perf_counter()  # the imports below take seconds
    if os.path.lexists(config / CONFIG_FILE):
        config, run = config / CONFIG_FILE, run or config
    loaded = load(config, overrides)
    from mt.export.export import check_export_possible, export_and_calibrate
    from mt.training.final_model import compare_with_start
    from mt.training.trainer import train as train_model

    check_export_possible(loaded.training, loaded.decoding)
    run = run or default_run(config)
    was_finished = is_finished(run)
    summary = train_model(loaded, run, began_at=began_at)
    if summary:  # rank 0 alone
        export_and_calibrate(run, loaded)
        continues = loaded.training.init_from is not None and not was_finished
        table = compare_with_start(run) if continues else ""
        typer.echo(summary)  # last: the reader of a pipe may have gone
        if table:
            typer.echo(f"\n{table}\n")
        choices = [
            f"decoding.{key}={next(iter(known))}" for key, known in loaded.tags_to_choose().items()
        ]
        tag = "".join(f" --set {shlex.quote(choice)}" for choice in choices)
        folder, split = shlex.quote(str(run)), next(iter(loaded.data.tests), "valid")
        typer.echo("next: translate a file, score the model, open it in a browser")
        commands = [f"translate {folder}{tag} < FILE", f"evaluate {folder} --split {split}"]
        for command in (*commands, f"serve {folder}{tag}"):
            typer.echo(f"  mt {command}")
        if not was_finished:
            draw_curves(run)


def draw_curves(run: Path) -> None:
    """Draw the curves of a finished training if matplotlib is there; a failure is only logged."""
    if find_spec("matplotlib") is not None:
        try:
            from mt.plotting.pictures import plot_trainings

            typer.echo(f"  {plot_trainings([run])}: loss, scores and learning rate")
        except Exception as error:
            _logger.warning("%s: no picture of the training (%s)", run, error)


def reproduce(config: ConfigFile, run: RunOption = None) -> None:
    """Train a recipe, score it, and compare with the expected scores.

    The exit status is 1 if a score is outside its expected range.
    """
    loaded = load(config)
    from mt.export.export import check_export_possible, export_and_calibrate
    from mt.recipes.reproduce import reproduce as reproduce_recipe

    check_export_possible(loaded.training, loaded.decoding)
    run = run or default_run(config)
    verdict = reproduce_recipe(loaded, run)
    export_and_calibrate(run, loaded)
    typer.echo(verdict.text)
    draw_curves(run)
    if not verdict.passed:
        raise typer.Exit(1)


def average(
    run: RunArgument,
    output: Annotated[
        Path, typer.Option(metavar="DIR", writable=True, help="New folder for the model.")
    ],
    checkpoints: Annotated[
        str,
        typer.Option(
            metavar="best|best:K|last:K|N,N",
            help="The best that are kept, the K best, the K newest, or those of some updates, "
            "such as 1000,2000.",
        ),
    ] = "best",
    device: Device = "auto",
) -> None:
    """Average the weights of a run's checkpoints."""
    if not re.fullmatch(r"best|(best|last):[1-9][0-9]{0,8}|[0-9]{1,9}(,[0-9]{1,9})*", checkpoints):
        raise UserError(
            f"--checkpoints {checkpoints}: write best, best:3, last:3, or updates such as 1000,2000"
        )
    from mt.training.final_model import average_run

    typer.echo(average_run(run, output, checkpoints=checkpoints, device=device))
