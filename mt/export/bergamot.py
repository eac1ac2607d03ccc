"""Export of a run to Bergamot, the engine of Firefox, translateLocally and offline apps.

The engine reads Marian's binary format (Junczys-Dowmunt et al. 2018), SentencePiece and YAML.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mt.config import ModelConfig
from mt.config.data import TERM_TAGS
from mt.config.loading import dump_yaml
from mt.config.model import MARIAN
from mt.data.sentencepiece_model import UNUSED, append_tokens, encode_token
from mt.data.tokenizer import SOURCE_SPM, TARGET_SPM
from mt.decoding.ctranslate2_engine import describe_unsupported
from mt.decoding.load import FinishedRun, build_engine
from mt.errors import UserError, listed
from mt.evaluation.scores import run_program, split_command
from mt.export import export as exports
from mt.export import hf_folder as hf
from mt.export.marian import OUTPUT, SOURCE, TARGET
from mt.files import open_aside, put_in_place, write_json, write_text
from mt.languages import language_name
from mt.special_ids import BOS, PAD

FORM = {**MARIAN, "residual": "post", "feed_forward": "relu"}
"""Values of a model that the engine can express."""
SEARCH = {
    "search": "greedy",
    "max_length_ratio": 2.0,
    "max_length_extra": 0,
    "no_repeat_ngram": None,
    "split_sentences": "off",
}
"""Search for a single sentence in the programs around the engine, which ignore other options."""
MODEL_FILES = {"none": "model.bin", "int8": "model.intgemm8.bin"}
"""The programs take the arithmetic from the name of the model."""
_ROWS, _COLUMNS = 64, 8
"""Multiples of which the engine needs the rows and the columns of a matrix in int8."""
_FLOAT, _TEXT, _INT8 = 0x404, 0x101, 0x4101
_ALIGNMENT = 256
Item = tuple[int, Sequence[int], bytes]  # type, shape and content of a tensor
_SUBLAYERS = {
    "self_attention": "self",
    "self_residual": "self_Wo",
    "cross_attention": "context",
    "cross_residual": "context_Wo",
    "feed_forward": "ffn",
    "feed_forward_residual": "ffn_ffn",
}
_PARTS = {"query": "q", "key": "k", "value": "v", "output": "o", "inner": "1", "outer": "2"}


def why_not_bergamot(model: ModelConfig) -> str | None:
    """Return the keys that the engine cannot express, or None."""
    other = [hf.find_other_keys(model, **FORM)]
    for key, width in (("d_model", model.d_model), ("d_ff", model.d_ff)):
        if width % _ROWS:
            other.append(f"`model.{key}: {width}` (only multiples of {_ROWS})")
    return ", ".join(filter(None, other)) or None


def check_form(model: ModelConfig) -> None:
    """Raise UserError, with the keys, for a model that the engine cannot express."""
    if reason := why_not_bergamot(model):
        raise UserError(f"Bergamot cannot express {reason}; see `mt init --for bergamot`")


def export_bergamot(
    run: FinishedRun, output: Path, proof: exports.Proof, options: exports.ExportOptions
) -> exports.ExportResult:
    """Export a run to the folder `output`, in float32 or int8.

    The stored weights translate the sample in the arithmetic of the engine, or the engine itself
    does, by `options.program`. The folder is kept as by `export_ctranslate2`. Raises UserError
    before anything is written if the run cannot be exported, or `output` exists.
    """
    tokenizer, quantization = run.tokenizer, options.quantization
    if quantization not in MODEL_FILES:
        raise UserError(f"`--quantization {quantization}`: --to bergamot has only `int8`")
    exports.check_export_folder(output, options)
    if reason := describe_unsupported(run.config.decoding):
        raise UserError(reason)
    check_form(run.config.model)
    if tags := {*tokenizer.source.tags, *tokenizer.target.tags} - {*TERM_TAGS}:
        raise UserError(f"Bergamot cannot put {listed(sorted(tags)[:3])} before a line")
    words = [] if options.program is None else split_command(options.program, "--proof")
    with open_aside(output) as folder:
        stored = write_bergamot(run, folder, quantization)
        translate: exports.Translate
        if words:
            translate = partial(_translate_by, [*words, str(folder)])
        else:
            engine = build_engine([replace(run, weights=stored)], torch.device("cpu"))
            for module in engine.model.modules():
                if isinstance(module, nn.Linear) and quantization == "int8":
                    module.register_forward_pre_hook(_round_input)
            # Inputs in int8 have one scale for a batch, so that a line would depend on the others.
            translate = proof.translator(engine, batch_size=1).translate
        parity = proof.compare(translate, proof.expected)
        failure = parity.why_not_kept(options)
        if failure is None:
            write_json(folder / exports.PARITY_FILE, asdict(parity))
            put_in_place(folder, output, is_new=True)
    return exports.ExportResult(parity, failure)


def write_bergamot(run: FinishedRun, folder: Path, quantization: str) -> dict[str, Tensor]:
    """Write the files of a run into `folder`, and return its weights as they are stored."""
    model, tokenizer, data = run.config.model, run.tokenizer, run.config.data
    tokenizer.write_for_others(folder)
    files = [folder / SOURCE_SPM, folder / TARGET_SPM]
    if tokenizer.source is tokenizer.target:
        files.pop().unlink()
        files = [files[0].rename(folder / "vocab.spm")]
    sizes = []
    for path, vocabulary in zip(files, (tokenizer.source, tokenizer.target), strict=False):
        size = len(vocabulary)
        padding = [encode_token(f"<unused {i}>", UNUSED) for i in range(-size % _COLUMNS)]
        path.write_bytes(append_tokens(path.read_bytes(), size, padding))
        sizes.append(size + len(padding))
    stored, items = dict[str, Tensor](), dict[str, Item]()
    for ours, theirs in _list_names(model):
        array = hf.parameter_or_zeros(run.weights, ours).float().numpy()
        rows = len(array)
        if ours in {SOURCE, TARGET, OUTPUT}:
            array = np.pad(array, ((0, -rows % _COLUMNS), (0, 0)))
        # Embeddings have a row for each token; other matrices have a column for each output.
        turned = array if theirs.endswith("Wemb") else array.T
        if array.ndim > 1 and quantization == "int8":  # not turned: so the engine reads it
            scale = 127 / max(np.abs(array).max(), 1e-9)
            numbers = np.rint(array * scale).astype(np.int8)
            items[theirs] = _INT8, turned.shape, numbers.tobytes() + struct.pack("<f", scale)
            array = numbers / scale
        else:
            items[theirs] = _FLOAT, np.atleast_2d(turned).shape, turned.astype("<f4").tobytes()
        stored[ours] = torch.from_numpy(array[:rows])
    bias = np.zeros((1, sizes[-1]), "<f4")
    bias[:, [PAD, BOS]] = bias[:, tokenizer.target_size :] = -1e4  # never generated
    items["decoder_ff_logit_out_b"] = _FLOAT, bias.shape, bias.tobytes()
    settings = {
        "type": "transformer",
        "dim-vocabs": [sizes[0], sizes[-1]],
        "dim-emb": model.d_model,
        "enc-depth": model.encoder_layers,
        "dec-depth": model.decoder_layers,
        "tied-embeddings": model.tie_embeddings == "decoder",
        "tied-embeddings-all": model.tie_embeddings == "all",
        "transformer-heads": model.heads,
        "transformer-dim-ffn": model.d_ff,
        "transformer-ffn-activation": "relu",
    }
    text = dump_yaml(settings).encode() + b"\0"
    items["special:model.yml"] = _TEXT, (len(text),), text
    write_items(folder / MODEL_FILES[quantization], items)
    options = {
        "relative-paths": True,
        "models": [MODEL_FILES[quantization]],
        "vocabs": [files[0].name, files[-1].name],
        "gemm-precision": "int8shiftAll" if quantization == "int8" else "float32",
        "beam-size": 1,
        "skip-cost": True,
        "max-length-factor": SEARCH["max_length_ratio"],
        "alignment": "soft",
    }
    write_text(folder / "config.intgemm8bitalpha.yml", dump_yaml(options))  # for translateLocally
    names = [language_name(code) for code in (data.source_language, data.target_language)]
    information = {
        "modelName": "-".join(names),
        "shortName": f"{data.source_language}-{data.target_language}",
        "type": "mt",
        "version": 1,
        "src": names[0],
        "trg": names[1],
        "srcTags": {data.source_language: names[0]},
        "trgTag": data.target_language,
    }
    write_json(folder / "model_info.json", information)
    return {name: stored[name] for name in run.weights}


def _list_names(model: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor here and in Marian."""
    if model.tie_embeddings == "all":
        yield TARGET, "Wemb"
    else:
        yield from ((SOURCE, "encoder_Wemb"), (TARGET, "decoder_Wemb"))
    if model.tie_embeddings == "none":
        yield OUTPUT, "decoder_ff_logit_out_W"
    for ours, _, _ in hf.iterate_layer_tensors(model):
        side, layer, sublayer, *_, part, kind = ours.split(".")
        if part == "norm":
            ending = "ln_scale" if kind == "weight" else "ln_bias"
        else:
            ending = ("W" if kind == "weight" else "b") + _PARTS[part]
        yield ours, f"{side}_l{int(layer) + 1}_{_SUBLAYERS[sublayer]}_{ending}"


def write_items(path: Path, items: Mapping[str, Item]) -> None:
    """Write tensors in Marian's binary format: headers, names, shapes, and the contents aligned."""
    padded = [content + bytes(-len(content) % _ALIGNMENT) for _, _, content in items.values()]
    head = struct.pack("<QQ", 1, len(items))
    for (name, (kind, shape, _)), content in zip(items.items(), padded, strict=True):
        head += struct.pack("<QQQQ", len(name) + 1, kind, len(shape), len(content))
    head += b"".join(name.encode() + b"\0" for name in items)
    head += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, shape, _ in items.values())
    gap = -(len(head) + 8) % _ALIGNMENT
    path.write_bytes(head + struct.pack("<Q", gap) + bytes(gap) + b"".join(padded))


def _round_input(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    """Round the input of a linear layer as the engine does: to 8 bits with one scale."""
    scale = 127 / inputs[0].abs().max().clamp(min=1e-9)
    return (inputs[0] * scale).round() / scale


def _translate_by(words: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Translate lines by a program; raise UserError if it fails or loses lines."""
    translations = run_program(words, "--proof", lines).removesuffix("\n").split("\n")
    if len(translations) != len(lines):
        raise UserError(f"--proof: `{words[0]}` printed {len(translations)} lines for {len(lines)}")
    return translations
