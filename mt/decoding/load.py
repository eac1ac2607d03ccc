"""Loading the model of a run folder or an export folder."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt.config import Config, DecodingConfig
from mt.config.data import TagKey, tags_as_text
from mt.config.loading import load_config, require_section
from mt.data.tokenizer import Tokenizer
from mt.decoding.engine import (
    Engine,
    choose_rank_device,
    describe_unsupported,
    find_differing_key,
)
from mt.errors import RunError, UserError, install_hint, listed
from mt.runs import (
    ADAPTER_FILE,
    CHECKPOINT_MANIFEST,
    CONFIG_FILE,
    EXPORT_FILE,
    EXPORT_FOLDER,
    MODEL_FILE,
    TOKENIZER_FOLDER,
    WEIGHTS_FILE,
    LineShape,
    ModelRecord,
    check_exported_model,
    check_finished,
    check_weights,
    is_exported,
    read_exported,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mt.decoding.ctranslate2_engine import CTranslate2Engine
    from mt.decoding.torch_engine import TorchEngine
    from mt.model.transformer import Transformer

_logger = logging.getLogger(__name__)


def read_tensors(path: Path) -> dict[str, "Tensor"]:
    """Return the tensors of a safetensors file by name; raise RunError where it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise RunError(f"{path}: damaged ({error})") from error
    return tensors


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
    advice: str = ""
    """How to translate faster, for the user; empty: nothing to advise."""


def load_model(run: Path, *, overrides: Sequence[str] = (), device: str = "auto") -> LoadedModel:
    """Load the final model of a run, or an exported model, which needs no torch.

    In a run that has not finished, load its best checkpoint, and log that. `overrides` are
    `decoding.KEY=VALUE`. Raises RunError for missing or damaged files of the folder, ConfigError
    for its config or the overrides, UserError for an unavailable device or engine.
    """
    stored = _StoredModel.open(run, overrides)
    advice = ""
    if stored.record.listed_in == EXPORT_FILE:
        require_ctranslate2()
        if reason := describe_unsupported(stored.config.decoding):
            raise UserError(reason)
        engine: Engine = open_export(run, stored.tokenizer, device)
    else:
        engine, advice = _choose_engine(stored, device)
    shape = stored.record.line_shape
    return LoadedModel(
        engine, stored.tokenizer, stored.config, stored.longest_source, shape, advice
    )


@dataclass(frozen=True, slots=True)
class _StoredModel:
    """Contents of the folder of a model, except for its weights."""

    path: Path
    record: ModelRecord
    config: Config
    tokenizer: Tokenizer

    @property
    def longest_source(self) -> int:
        """The recorded length; the limit of the config before the end of a training."""
        return self.record.longest_source or self.config.data.max_tokens

    @classmethod
    def open(cls, path: Path, overrides: Sequence[str]) -> "_StoredModel":
        """Read the files of a folder; log that a training has not finished."""
        require_section(overrides, "decoding")
        record = ModelRecord.read(path)
        if record.listed_in == CHECKPOINT_MANIFEST:
            message = "%s: the training has not finished; using its best checkpoint, %s"
            _logger.warning(message, path, record.folder)
        tokenizer = Tokenizer.load(path / TOKENIZER_FOLDER)
        check_tokenizer(tokenizer, record.tokenizer, path)
        return cls(path, record, load_config(path / CONFIG_FILE, overrides=overrides), tokenizer)


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
    return _read_weights(_StoredModel.open(run, overrides))


def _read_weights(stored: _StoredModel) -> FinishedRun:
    record = stored.record
    check_weights(record.folder, record.sha256, listed_in=record.listed_in)
    return FinishedRun(
        record.folder,
        stored.config,
        stored.tokenizer,
        read_tensors(record.folder / WEIGHTS_FILE),
        record.sha256,
        stored.longest_source,
        record.line_shape,
    )


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


def check_tokenizer(tokenizer: Tokenizer, fingerprint: str | None, folder: Path) -> None:
    """Raise RunError if the tokenizer of a folder is not that of its model; None: not recorded."""
    if fingerprint is not None and tokenizer.fingerprint != fingerprint:
        raise RunError(
            f"{folder / TOKENIZER_FOLDER}: is the tokenizer of another run "
            f"(fingerprint {tokenizer.fingerprint[:12]}, the model was trained with "
            f"{fingerprint[:12]})"
        )


def decoding_settings(run: Path, decoding: DecodingConfig) -> dict[str, Any]:
    """Return the settings that determine the translations of a run, by key, as JSON values."""
    models = filter(None, (run, *decoding.ensemble, decoding.adapter))
    return {
        "model": "+".join(ModelRecord.read(model).sha256 for model in models),
        **{f"decoding.{key}": value for key, value in decoding.model_dump(mode="json").items()},
    }


def _choose_engine(stored: _StoredModel, device: str) -> tuple[Engine, str]:
    """Return the engine that `decoding.engine` names for a run, and an advice for the user or "".

    `auto` is CTranslate2 on a CPU where a valid export of the weights lies in the run. Raises
    UserError if CTranslate2 is asked for and cannot be had.
    """
    from mt.decoding.sampling import check_candidates
    from mt.model.device import select_device

    decoding, torch_device = stored.config.decoding, select_device(device)
    check_candidates(decoding)
    differing = find_differing_key(decoding)
    is_finished = stored.record.listed_in == MODEL_FILE
    command = f"mt export {stored.path} --to ctranslate2"
    if decoding.engine == "ctranslate2":
        if not is_finished:
            raise UserError(f"{stored.path}: the training has not finished, and has no export")
        if differing is not None:
            raise UserError(
                f"`{differing}`: not with `decoding.engine: ctranslate2`; take `auto` or `torch`"
            )
        require_ctranslate2()
        if reason := _find_export_problem(stored):
            raise UserError(f"{stored.path}: {reason}; `{command}` makes one")
        return _load_combined(stored, device), ""
    advice = ""
    is_open = decoding.engine == "auto" and torch_device.type == "cpu" and differing is None
    if is_open and is_finished:
        reason = _find_export_problem(stored)
        if reason is None and find_spec("ctranslate2") is not None:
            try:
                return _load_combined(stored, "cpu"), ""
            except RunError as error:
                reason = str(error)
        if reason is not None:
            speed = "an export decodes 1.4 to 1.9 times as fast on this CPU"
            advice = f"{reason}; {speed}: {command}"
    return load_torch_engine(_read_weights(stored), torch_device), advice


def _find_export_problem(stored: _StoredModel) -> str | None:
    """Return the reason why the export in a run does not stand for its weights, or None."""
    folder = stored.path / EXPORT_FOLDER
    if not is_exported(folder):
        return f"there is no export in {folder}"
    exported = read_exported(folder)
    if (exported.weights, exported.tokenizer) != (stored.record.sha256, stored.record.tokenizer):
        return f"{folder} is an export of other weights"
    if exported.quantization != "none":
        return f"{folder} is quantized"
    parity = exported.parity
    if not parity or parity["identical"] != parity["sentences"]:
        return f"{folder} translates some lines otherwise than the run"
    return None


def _load_combined(stored: _StoredModel, device: str) -> Engine:
    """Return CTranslate2 with the export in a run, and PyTorch for what it lacks."""
    from mt.decoding.ctranslate2_engine import CombinedEngine
    from mt.model.device import select_device

    record = stored.record
    check_weights(record.folder, record.sha256, listed_in=record.listed_in)
    fast = open_export(stored.path / EXPORT_FOLDER, stored.tokenizer, device)
    torch_device = select_device(device)
    return CombinedEngine(fast, lambda: load_torch_engine(_read_weights(stored), torch_device))


def load_torch_engine(finished: FinishedRun, device: "torch.device") -> "TorchEngine":
    """Return the PyTorch engine of a run, with its adapter and ensemble, on a device."""
    import torch

    from mt.decoding.torch_engine import TorchEngine

    decoding = finished.config.decoding
    if decoding.adapter is not None:
        finished = _adapted(finished, decoding.adapter)
    others = [read_run(other) for other in decoding.ensemble]
    for other in others:
        if other.tokenizer.fingerprint != finished.tokenizer.fingerprint:
            raise RunError(
                f"{other.folder}: `decoding.ensemble` needs the same tokenizer in all runs, this "
                "one has another; train it with `tokenizer.from`"
            )
    if device.type == "cuda":
        index = choose_rank_device(torch.cuda.device_count())
        device = torch.device("cuda") if index is None else torch.device("cuda", index)
    dtype = weights_dtype(decoding, device)
    models = [_build(member, device).to(dtype) for member in (finished, *others)]
    return TorchEngine(models[0], device, models[1:])


def require_ctranslate2() -> None:
    """Raise UserError with an install command if CTranslate2 is not installed."""
    if find_spec("ctranslate2") is None:
        raise UserError(f"exported models need CTranslate2: {install_hint('ctranslate2')}")


def open_export(folder: Path, tokenizer: Tokenizer, device: str) -> "CTranslate2Engine":
    """Load an exported model after a check of its files; `device` is auto, cuda or cpu."""
    import ctranslate2

    from mt.decoding.ctranslate2_engine import CTranslate2Engine

    exported = read_exported(folder)
    check_exported_model(folder, exported)
    available = ["cuda", "cpu"] if ctranslate2.get_cuda_device_count() else ["cpu"]
    if device == "auto":
        device = available[0]
    if device not in available:
        raise UserError(f"device `{device}`: CTranslate2 has {listed(available)} on this machine")
    positions = exported.positions
    return CTranslate2Engine(folder, device=device, tokenizer=tokenizer, positions=positions)


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


def require_tag(
    choices: Mapping[TagKey, Mapping[str | None, Any]], overrides: Sequence[str] = (), *, name: Path
) -> None:
    """Raise UserError if all training lines of a run had tags and none is chosen.

    The target language would be undefined. `choices` are those of `Config.tags_to_choose`;
    `decoding.tag=null` among the overrides is a choice. `name` is the folder of the run.
    """
    for key, tags in choices.items():
        if not any(override.startswith(f"decoding.{key}=") for override in overrides):
            raise UserError(
                f"{name}: each training line begins with a tag; choose one of "
                f"{' or '.join(tags_as_text(tags))}, as in "
                f"`--set 'decoding.{key}={next(iter(tags))}'`"
            )
