"""Loading the model of a run folder or an export folder."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt.config import Config, DecodingConfig
from mt.config.data import tags_as_text
from mt.config.loading import load_config, require_section
from mt.data.tokenizer import Tokenizer
from mt.decoding.cached_export import CachedExport, open_export, require_ctranslate2
from mt.decoding.engine import Engine, why_not_decoded
from mt.decoding.shards import own_device
from mt.errors import RunError, UserError
from mt.runs import (
    ADAPTER_FILE,
    CHECKPOINT_MANIFEST,
    CONFIG_FILE,
    MODEL_FILE,
    TOKENIZER_FOLDER,
    WEIGHTS_FILE,
    LineShape,
    best_checkpoint,
    check_finished,
    check_run_folder,
    check_weights,
    is_exported,
    is_finished,
    read_description,
    read_exported,
    read_tensors,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mt.decoding.torch_engine import TorchEngine
    from mt.model.transformer import Transformer

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Model ready to translate."""

    engine: Engine
    tokenizer: Tokenizer
    config: Config
    """Config of the run, with the overrides."""
    longest_source: int
    """Tokens of the longest source that the model was trained on, including EOS."""
    line_shape: LineShape | None
    """Shape of the training sources; None if it is unknown."""


def load_model(run: Path, *, overrides: Sequence[str] = (), device: str = "auto") -> LoadedModel:
    """Load the final model of a run, or an exported model, which needs no torch.

    In a run that has not finished, load its best checkpoint, and log that. `overrides` are
    `decoding.KEY=VALUE`. Raises RunError for missing or damaged files of the folder, ConfigError
    for its config or the overrides, UserError for an unavailable device.
    """
    if is_exported(run):
        return _load_exported(run, overrides, device)
    from mt.model.device import select_device

    where = select_device(device)
    if where.type == "cuda":
        where = _own_device()
    read = read_run if is_finished(run) else read_best_checkpoint
    finished = read(run, overrides=overrides)
    decoding = finished.config.decoding
    if decoding.adapter is not None:
        finished = _adapted(finished, decoding.adapter)
    others = [read_run(each) for each in decoding.ensemble]
    for other in others:
        if other.tokenizer.fingerprint != finished.tokenizer.fingerprint:
            raise RunError(
                f"{other.folder}: `decoding.ensemble` needs the same tokenizer in all runs, this "
                "one has another; train it with `tokenizer.from`"
            )
    dtype = weights_dtype(decoding, where)
    models = [_build(member, where).to(dtype) for member in (finished, *others)]
    engine: Engine = _engine(run, finished, models, where, device)
    if decoding.mbr is not None:
        from mt.decoding.mbr import MbrEngine

        engine = MbrEngine(engine, finished.tokenizer, decoding)
    return LoadedModel(
        engine,
        finished.tokenizer,
        finished.config,
        finished.longest_source,
        finished.line_shape,
    )


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Contents of the folder of a finished run; of an unfinished one, with its best checkpoint."""

    folder: Path
    """Folder of the weights."""
    config: Config
    tokenizer: Tokenizer
    weights: dict[str, "Tensor"]
    """Parameters by name, on the CPU."""
    weights_sha256: str
    longest_source: int
    """Tokens of the longest source that the model was trained on, including EOS."""
    line_shape: LineShape | None = None
    """Shape of the training sources; None if it is unknown."""


def read_run(run: Path, *, overrides: Sequence[str] = ()) -> FinishedRun:
    """Read the folder of a finished run and verify the checksums of its files.

    `overrides` are `decoding.KEY=VALUE`. Raises RunError for missing or damaged files, ConfigError
    for the config or the overrides.
    """
    check_finished(run)
    require_section(overrides, "decoding")
    config = load_config(run / CONFIG_FILE, overrides=overrides)
    description = read_description(run / MODEL_FILE)
    tokenizer = load_tokenizer(run, description.tokenizer)
    check_weights(run, description.weights)
    weights = read_tensors(run / WEIGHTS_FILE)
    return FinishedRun(
        run,
        config,
        tokenizer,
        weights,
        description.weights,
        description.longest_source,
        description.line_shape,
    )


def read_best_checkpoint(run: Path, *, overrides: Sequence[str] = ()) -> FinishedRun:
    """Read the folder of an unfinished run with its best checkpoint; raise as `read_run` does.

    The longest source is not recorded before the end; the limit of the config takes its place.
    """
    check_run_folder(run)
    require_section(overrides, "decoding")
    config = load_config(run / CONFIG_FILE, overrides=overrides)
    folder, sha256 = best_checkpoint(run)
    tokenizer = Tokenizer.load(run / TOKENIZER_FOLDER)
    check_weights(folder, sha256, listed_in=CHECKPOINT_MANIFEST)
    _logger.warning("%s: the training has not finished; using its best checkpoint, %s", run, folder)
    weights = read_tensors(folder / WEIGHTS_FILE)
    return FinishedRun(folder, config, tokenizer, weights, sha256, config.data.max_tokens)


def _adapted(finished: FinishedRun, run: Path) -> FinishedRun:
    """Return a run with low-rank matrices that were trained on its weights."""
    from safetensors import SafetensorError, safe_open

    from mt.model.weights import merge_low_rank

    path = run / ADAPTER_FILE
    check_finished(run)
    if not path.is_file():
        raise RunError(f"{run}: was not trained with `training.lora`, {ADAPTER_FILE} is missing")
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads(file.metadata()["facts"])
            learnt = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        scale = float(facts["scale"])
        base, tokenizer = facts["base"], facts["tokenizer"]
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: damaged ({error})") from error
    if base != finished.weights_sha256:
        raise RunError(f"{path}: was trained from another run than {finished.folder}")
    if tokenizer != finished.tokenizer.fingerprint:
        raise RunError(f"{path}: needs the tokenizer of its run; translate with {run}")
    return replace(finished, weights=merge_low_rank({**finished.weights, **learnt}, scale))


def load_tokenizer(folder: Path, fingerprint: str) -> Tokenizer:
    """Load the tokenizer of a folder; raise RunError if it is damaged or of another run."""
    tokenizer = Tokenizer.load(folder / TOKENIZER_FOLDER)
    if tokenizer.fingerprint != fingerprint:
        raise RunError(
            f"{folder / TOKENIZER_FOLDER}: is the tokenizer of another run "
            f"(fingerprint {tokenizer.fingerprint[:12]}, the model was trained with "
            f"{fingerprint[:12]})"
        )
    return tokenizer


def weights_of(run: Path) -> str:
    """Return the SHA-256 of the weights of a run, its best checkpoint, or an export."""
    if is_exported(run):
        return read_exported(run).model
    if is_finished(run):
        return read_description(run / MODEL_FILE).weights
    check_run_folder(run)
    return best_checkpoint(run)[1]


def decoding_settings(run: Path, decoding: DecodingConfig) -> dict[str, Any]:
    """Return the settings that determine the translations of a run, by key, as JSON values."""
    models = filter(None, (run, *decoding.ensemble, decoding.adapter))
    return {
        "model": "+".join(map(weights_of, models)),
        **{f"decoding.{key}": each for key, each in decoding.model_dump(mode="json").items()},
    }


def _own_device() -> "torch.device":
    """Return the GPU of this rank under torchrun, else the current one."""
    import torch

    number = own_device(torch.cuda.device_count())
    return torch.device("cuda") if number is None else torch.device("cuda", number)


def _engine(
    run: Path,
    finished: FinishedRun,
    models: Sequence["Transformer"],
    where: "torch.device",
    device: str,
) -> "TorchEngine":
    """Return the engine that `decoding.engine` names; `device` is the name of the device `where`.

    Raises UserError if CTranslate2 is asked for and cannot be had.
    """
    from mt.decoding.hybrid_engine import HybridEngine, not_in_ctranslate2
    from mt.decoding.torch_engine import TorchEngine

    decoding = finished.config.decoding
    asked, key = decoding.engine == "ctranslate2", not_in_ctranslate2(decoding)
    if asked:
        check_finished(run)
        if key is not None:
            raise UserError(
                f"`{key}`: not with `decoding.engine: ctranslate2`; take `auto` or `torch`"
            )
    takes_it = decoding.engine == "auto" and where.type == "cpu" and is_finished(run) and not key
    if not asked and not takes_it:
        return TorchEngine(models[0], where, models[1:])
    export = CachedExport(
        run,
        finished.config.model,
        finished.weights_sha256,
        finished.tokenizer,
        device if asked else "cpu",
    )
    engine = HybridEngine(models[0], where, export)
    if asked:
        engine.require()
    return engine


def weights_dtype(decoding: DecodingConfig, device: "torch.device") -> "torch.dtype":
    """Return the type of the weights on a device; softmax and sums are in fp32 in any case."""
    import torch

    is_bf16 = decoding.precision == "bf16"
    if decoding.precision == "auto" and device.type == "cuda":
        is_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if is_bf16 else torch.float32


def _build(finished: FinishedRun, device: "torch.device") -> "Transformer":
    """Return the model of a run on a device, in evaluation mode."""
    from mt.model.transformer import Transformer
    from mt.model.weights import lay_out_for_few_rows, load_parameters

    model = Transformer(
        finished.config.model,
        source_vocabulary=finished.tokenizer.source_size,
        target_vocabulary=finished.tokenizer.target_size,
    )
    load_parameters(model, finished.weights, str(finished.folder / WEIGHTS_FILE))
    if device.type == "cpu":
        lay_out_for_few_rows(model)
    return model.to(device).eval()


def _load_exported(folder: Path, overrides: Sequence[str], device: str) -> LoadedModel:
    require_ctranslate2()
    exported = read_exported(folder)
    require_section(overrides, "decoding")
    config = load_config(folder / CONFIG_FILE, overrides=overrides)
    if reason := why_not_decoded(config.decoding):
        raise UserError(reason)
    tokenizer = load_tokenizer(folder, exported.tokenizer)
    engine = open_export(folder, tokenizer, device)
    return LoadedModel(engine, tokenizer, config, exported.longest_source, exported.line_shape)


def require_tag(run: Path, overrides: Sequence[str] = ()) -> None:
    """Raise UserError if all training lines of a run had tags and none is chosen.

    The target language would be undefined. `decoding.tag=null` among the `overrides` is a choice.
    """
    for key, tags in load_config(run / CONFIG_FILE).tags_to_choose().items():
        if not any(override.startswith(f"decoding.{key}=") for override in overrides):
            raise UserError(
                f"{run}: each training line begins with a tag; choose one of "
                f"{' or '.join(tags_as_text(tags))}, as in "
                f"`--set 'decoding.{key}={next(iter(tags))}'`"
            )
