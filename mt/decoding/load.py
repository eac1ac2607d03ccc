"""Loading the model of a run folder or an export folder."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt.config import Config
from mt.config.data import TagKey, tags_as_text
from mt.config.loading import load_config, require_section
from mt.data.tokenizer import Tokenizer
from mt.decoding.ctranslate2_engine import (
    CombinedEngine,
    CTranslate2Engine,
    describe_unsupported,
    find_differing_key,
)
from mt.decoding.engine import Engine, choose_rank_device
from mt.errors import RunError, UserError
from mt.files import check_sha256
from mt.runs import (
    ADAPTER_FILE,
    CONFIG_FILE,
    MODEL_FILE,
    TOKENIZER_FOLDER,
    WEIGHTS_FILE,
    ModelRecord,
    export_folder,
    is_exported,
    read_verified_export,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mt.decoding.torch_engine import TorchEngine

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """Contents of the folder of a run or an export, except for its weights."""

    path: Path
    record: ModelRecord
    tokenizer: Tokenizer
    config: Config
    """Config of the run, with the overrides."""
    overrides: Sequence[str]

    @property
    def longest_source(self) -> int:
        """Tokens of the longest training source, with EOS; before the end, the config's limit."""
        return self.record.longest_source or self.config.data.max_tokens

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine the translations, by key, as JSON values."""
        decoding = self.config.decoding
        further = [ModelRecord.read(run) for run in (*decoding.ensemble, decoding.adapter) if run]
        return {
            "model": "+".join(record.sha256 for record in (self.record, *further)),
            **{f"decoding.{key}": value for key, value in decoding.model_dump(mode="json").items()},
        }

    @classmethod
    def read(
        cls, path: Path, overrides: Sequence[str] = (), *, finished: bool = False
    ) -> "StoredModel":
        """Read the files of a folder; log that a training has not finished.

        `overrides` are `decoding.KEY=VALUE`. Raises RunError for missing or damaged files, and with
        `finished` for another folder than that of a finished run; ConfigError for the config or the
        overrides.
        """
        require_section(overrides, "decoding")
        record = ModelRecord.read(path, finished=finished)
        if record.is_of_checkpoint:
            message = "%s: the training has not finished; using its best checkpoint, %s"
            _logger.warning(message, path, record.folder)
        tokenizer = Tokenizer.load(path / TOKENIZER_FOLDER, record.tokenizer)
        config = load_config(path / CONFIG_FILE, overrides=overrides)
        if config.decoding.search == "auto":
            config = config.changed(decoding=config.decoding.changed(search="beam"))
        return cls(path, record, tokenizer, config, overrides)

    def with_weights(self) -> "FinishedRun":
        """Read the weights, verify their checksum, and return them with the other contents."""
        record = self.record
        weights = read_tensors(record.folder / WEIGHTS_FILE, record.sha256, record.listed_in)
        contents = {field.name: getattr(self, field.name) for field in fields(StoredModel)}
        return FinishedRun(**contents, weights=weights)


@dataclass(frozen=True, slots=True)
class FinishedRun(StoredModel):
    """Contents of the folder of a run, with its weights."""

    weights: dict[str, "Tensor"]
    """Parameters by name, on the CPU."""


def load_engine(stored: StoredModel, device: str) -> Engine:
    """Return the engine of a model.

    An export needs no torch. For a run it is the engine that `decoding.engine` names; `auto` is
    CTranslate2 on a CPU where the run has a valid export of its weights, else PyTorch; an export
    that cannot be used is a warning. With `decoding.quantization` it is the export in that
    quantization. Raises RunError for missing or damaged files, UserError for an unavailable device
    or engine.
    """
    decoding, record = stored.config.decoding, stored.record
    quantization, command = decoding.quantization, f"mt export {stored.path} --to ctranslate2"
    is_quantized = quantization != "none"
    if record.is_of_checkpoint and (is_quantized or decoding.engine == "ctranslate2"):
        raise UserError(f"{stored.path}: the training has not finished, and has no export")
    if record.is_of_export or is_quantized:
        if reason := describe_unsupported(decoding):
            raise UserError(reason)
        if record.is_of_export:
            return _open_export(stored, stored.path, device)
        setting = f"`decoding.quantization: {quantization}`"
        if decoding.engine == "torch":
            raise UserError(f"`decoding.engine: torch`: not with {setting}; leave one of them out")
        try:
            return _open_export(stored, export_folder(stored.path, quantization), device, record)
        except RunError as error:
            command = f"`{command} --quantization {quantization}`"
            raise UserError(f"{setting}: {error}; {command} writes one") from None

    from mt.model.device import select_device

    torch_device = select_device(device)
    load_torch = partial(_load_torch_engine, stored, torch_device)
    differing = find_differing_key(decoding)
    if decoding.engine == "ctranslate2":
        if differing is not None:
            raise UserError(
                f"`{differing}`: not with `decoding.engine: ctranslate2`; take `auto` or `torch`"
            )
    elif (
        decoding.engine == "torch"
        or record.is_of_checkpoint
        or differing is not None
        or torch_device.type != "cpu"
    ):
        return load_torch()
    folder = export_folder(stored.path)
    try:
        fast_device = "cpu" if decoding.engine == "auto" else device
        fast = _open_export(stored, folder, fast_device, record)
    except UserError as error:
        advice = f"; `{command}` writes an export" if isinstance(error, RunError) else ""
        if decoding.engine == "ctranslate2":
            raise UserError(f"{stored.path}: {error}{advice}") from None
        if is_exported(folder):
            _logger.warning("%s; translating with PyTorch, which is slower%s", error, advice)
        return load_torch()
    return CombinedEngine(fast, load_torch)


def _open_export(
    stored: StoredModel, folder: Path, device: str, run: ModelRecord | None = None
) -> CTranslate2Engine:
    """Verify and load an exported model; it must be that of `run`, if given, as it is set."""
    exported = read_verified_export(folder, run, stored.config.decoding.quantization)
    require_ctranslate2()
    return CTranslate2Engine(
        folder, device=device, tokenizer=stored.tokenizer, positions=exported.positions
    )


def read_run(run: Path, *, overrides: Sequence[str] = ()) -> FinishedRun:
    """Read a finished run and verify its files; `overrides` are `decoding.KEY=VALUE`."""
    return StoredModel.read(run, overrides, finished=True).with_weights()


def read_tensors(
    path: Path, sha256: str | None = None, listed_in: str = MODEL_FILE
) -> dict[str, "Tensor"]:
    """Return the tensors of a safetensors file by name; raise RunError where it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if sha256 is not None:
        check_sha256(path, sha256, listed_in)
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise RunError(f"{path}: damaged ({error})") from error
    return tensors


def _add_adapter(finished: FinishedRun, run: Path) -> FinishedRun:
    """Return a run with low-rank matrices that another run has trained on its weights."""
    from safetensors import SafetensorError, safe_open

    from mt.model.weights import merge_low_rank

    ModelRecord.read(run, finished=True)
    path = run / ADAPTER_FILE
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
    if base != finished.record.sha256:
        raise RunError(f"{path}: was trained from another run than {finished.path}")
    if tokenizer != finished.tokenizer.fingerprint:
        raise RunError(f"{path}: needs the tokenizer of its run; translate with {run}")
    return replace(finished, weights=merge_low_rank({**finished.weights, **learnt}, scale))


def _load_torch_engine(stored: StoredModel, device: "torch.device") -> "TorchEngine":
    """Return the PyTorch engine of a run, with its adapter and ensemble, on a device."""
    import torch

    decoding = stored.config.decoding
    is_bf16 = decoding.precision == "bf16"
    if decoding.precision == "auto" and device.type == "cuda":
        is_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    dtype = torch.bfloat16 if is_bf16 else torch.float32  # softmax and sums are in fp32
    members = [read_run(member) for member in decoding.ensemble]
    for member in members:
        if member.tokenizer.fingerprint != stored.tokenizer.fingerprint:
            raise RunError(
                f"{member.path}: `decoding.ensemble` needs the same tokenizer in all runs, this "
                "one has another; train it with `tokenizer.from`"
            )
    finished = stored.with_weights()
    if decoding.adapter is not None:
        finished = _add_adapter(finished, decoding.adapter)
    if device.type == "cuda":
        index = choose_rank_device(torch.cuda.device_count())
        device = torch.device("cuda") if index is None else torch.device("cuda", index)
    return build_engine((finished, *members), device, dtype)


def build_engine(
    runs: Sequence[FinishedRun],
    device: "torch.device",
    dtype: "torch.dtype | None" = None,
) -> "TorchEngine":
    """Return the PyTorch engine of a run, or of an ensemble; by default in fp32."""
    from mt.decoding.torch_engine import TorchEngine
    from mt.model.transformer import Transformer
    from mt.model.weights import lay_out_for_few_rows, load_parameters

    models = []
    for run in runs:
        model = Transformer(
            run.config.model,
            source_vocabulary=run.tokenizer.source_size,
            target_vocabulary=run.tokenizer.target_size,
        )
        load_parameters(model, run.weights, str(run.record.folder / WEIGHTS_FILE))
        if device.type == "cpu":
            lay_out_for_few_rows(model)
        models.append(model.to(device).eval().to(dtype))
    return TorchEngine(models[0], device, models[1:])


def require_ctranslate2() -> None:
    """Import CTranslate2; raise UserError where it has no wheel, or its wheel cannot be loaded."""
    try:
        import ctranslate2  # noqa: F401
    except ImportError as error:
        raise UserError(f"CTranslate2 cannot be imported here ({error})") from error


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
