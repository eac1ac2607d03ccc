"""Export of a run to ONNX: an encoder and one step of the cached decoder, proven by onnxruntime.

Axes as in `mt.model.transformer`, with L decoder layers and one row per sentence. The two files
exchange these tensors:

    encoder.onnx   source [B S] -> memory_keys [L B G S d_k], memory_values [L B G S d_v]
    decoder.onnx   last_ids [B], source, memory_keys, memory_values, past_keys [L B G T d_k],
                   past_values [L B G T d_v] -> logits [B V], keys and values of T + 1 tokens

The first step takes BOS and a past of no tokens.
"""

import logging
import warnings
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mt.data.tokenizer import copy_tokenizer
from mt.decoding.ctranslate2_engine import describe_unsupported
from mt.decoding.load import FinishedRun, build_engine
from mt.decoding.torch_engine import TorchEngine
from mt.errors import UserError, install_hint
from mt.export import export as exports
from mt.files import open_aside, put_in_place, write_json
from mt.model.attention import LayerCache
from mt.model.transformer import DecoderState, Transformer
from mt.runs import TOKENIZER_FOLDER, Quantization
from mt.special_ids import BOS, EOS, PAD, UNK

ENCODER_FILE, DECODER_FILE, METADATA_FILE = "encoder.onnx", "decoder.onnx", "metadata.json"
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
MAX_BYTES = 2**31  # of a protocol buffers message, and so of an ONNX file
_INPUTS = ["last_ids", "source", "memory_keys", "memory_values", "past_keys", "past_values"]


def export_onnx(
    run: FinishedRun, output: Path, proof: exports.Proof, options: exports.ExportOptions
) -> exports.ExportResult:
    """Export a run to the folder `output` in float32, or with weights in dynamic int8.

    The run and onnxruntime on the CPU translate the lines of a proof by greedy search. The folder
    is kept as by `export_ctranslate2`, but its lines are equal if their tokens are. Raises
    UserError before anything is written where that raises it, or a package is missing.
    """
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise UserError(f"--to onnx needs {' and '.join(missing)}: {install_hint('onnx')}")
    quantization = options.quantization
    if quantization not in ("none", "int8"):
        raise UserError(f"`--quantization {quantization}`: --to onnx has only `int8`")
    exports.check_export_folder(output, options)
    if reason := describe_unsupported(run.config.decoding):
        raise UserError(reason)
    size = sum(tensor.nbytes for tensor in run.weights.values())
    if size >= MAX_BYTES:
        raise UserError(f"{run.path}: {size:,} bytes of weights; an ONNX file has less than 2 GiB")
    positions, expected = exports.count_positions(run), proof.expected
    config, tokenizer = run.config, run.tokenizer
    metadata = {  # enough for the search of another program
        "source_language": config.data.source_language,
        "target_language": config.data.target_language,
        "quantization": quantization,
        "special_ids": {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS},
        "source_tags": tokenizer.source.tags,
        "target_tags": tokenizer.target.tags,
        "longest_source": run.longest_source,
        "positions": positions,
        "max_length_ratio": config.decoding.max_length_ratio,
        "max_length_extra": config.decoding.max_length_extra,
        "weights": run.record.sha256,
    }
    with open_aside(output) as folder:
        logging.disable(logging.WARNING)  # exporter and quantizer warn about their own code
        try:
            with warnings.catch_warnings(action="ignore"):
                model = build_engine([run], torch.device("cpu")).model
                note = write_graphs(folder, model, positions, quantization)
        finally:
            logging.disable(logging.NOTSET)
        in_onnx = cast(Transformer, _OnnxModel(folder, positions))
        engine = TorchEngine(in_onnx, torch.device("cpu"))
        # Activations in int8 have one scale for a batch, so that a line would depend on the others.
        alone: dict[str, Any] = {} if quantization == "none" else {"batch_size": 1}
        exported = proof.translator(engine, **alone)
        parity = proof.compare(exported, expected)
        if quantization == "none":
            streams = proof.of_run.stream(proof.lines), exported.stream(proof.lines)
            pairs = zip(*streams, strict=True)
            same = sum(one.alternatives[0].ids == other.alternatives[0].ids for one, other in pairs)
            parity = replace(parity, identical=same)
        failure = parity.why_not_kept(options)
        if failure is None:
            copy_tokenizer(run.path, folder / TOKENIZER_FOLDER)
            write_json(folder / exports.PARITY_FILE, asdict(parity))
            write_json(folder / METADATA_FILE, metadata)
            put_in_place(folder, output, is_new=True)
    return exports.ExportResult(parity, failure, note)


class EncoderGraph(nn.Module):
    """Encoder, with the keys and values to which each decoder layer attends."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a source."""
        states = self.model.encode(source).states
        pairs = [
            layer.cross_attention.project_keys_values(states) for layer in self.model.decoder_layers
        ]
        keys, values = zip(*pairs, strict=True)
        return torch.stack(keys), torch.stack(values)


class DecoderGraph(EncoderGraph):
    """One step of the decoder, from the keys and values of T tokens to those of T + 1."""

    def forward(  # type: ignore[override]
        self,
        last_ids: Tensor,
        source: Tensor,
        memory_keys: Tensor,
        memory_values: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, keys and values."""
        heads = zip(memory_keys, memory_values, past_keys, past_values, strict=True)
        caches = [_Cache(*of_layer) for of_layer in heads]
        ancestry = torch.ones(len(source), 1, past_keys.shape[3], dtype=torch.bool)
        state = DecoderState(cast(list[LayerCache], caches), source != PAD, ancestry)
        logits = self.model.step(last_ids, state)
        keys, values = [cache.keys for cache in caches], [cache.values for cache in caches]
        return logits, torch.stack(keys), torch.stack(values)


@dataclass
class _Cache:
    """Cache of one row per sentence, as `LayerCache` but without memory in reserve."""

    memory_keys: Tensor
    memory_values: Tensor
    keys: Tensor
    values: Tensor

    @property
    def tokens(self) -> int:
        return self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor) -> None:
        self.keys = torch.cat((self.keys, keys), dim=2)
        self.values = torch.cat((self.values, values), dim=2)


def write_graphs(
    folder: Path, model: Transformer, positions: int, quantization: Quantization
) -> str:
    """Write encoder and decoder for up to `positions` tokens; return their size in one line."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    from onnxruntime.quantization import quantize_dynamic

    model.reserve_positions(positions)
    source = torch.tensor([[UNK, UNK, EOS], [UNK, EOS, PAD]])
    with torch.no_grad():
        memory = EncoderGraph(model)(source)
    # Sizes of 0 and 1 would be taken for constants, and equal ones for one axis.
    past = [heads.new_zeros(*heads.shape[:3], 5, heads.shape[4]) for heads in memory]
    inputs = dict(zip(_INPUTS, (torch.tensor([BOS, BOS]), source, *memory, *past), strict=True))
    axes = {name: {1: "batch", 3: f"{name.split('_')[0]}_tokens"} for name in _INPUTS}
    axes |= {"last_ids": {0: "batch"}, "source": {0: "batch", 1: "memory_tokens"}}
    in_float32 = in_all = 0
    for file, graph, taken, given in (
        (ENCODER_FILE, EncoderGraph(model), _INPUTS[1:2], _INPUTS[2:4]),
        (DECODER_FILE, DecoderGraph(model), _INPUTS, ["logits", "keys", "values"]),
    ):
        program = torch.onnx.export(
            graph.eval(),
            tuple(inputs[name] for name in taken),
            input_names=taken,
            output_names=given,
            dynamic_shapes=tuple(axes[name] for name in taken),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        ClearMetadataAndDocStringPass()(program.model)  # larger than the weights of a small model
        proto, path = program.model_proto, folder / file
        path.write_bytes(proto.SerializeToString())
        if quantization == "int8":
            quantize_dynamic(proto, path, per_channel=True)
        in_float32 += proto.ByteSize()
        in_all += path.stat().st_size
    note = f"{ENCODER_FILE} and {DECODER_FILE}: {in_all:,} bytes"
    return note if quantization == "none" else f"{note}, in float32 {in_float32:,}"


class _OnnxModel(nn.Module):
    """The methods of `Transformer` that greedy search calls, by onnxruntime on the CPU."""

    def __init__(self, folder: Path, longest: int) -> None:
        import onnxruntime

        super().__init__()
        self.longest = longest
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # `TorchEngine` has a thread for each batch
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(folder / file, options, ["CPUExecutionProvider"])
            for file in (ENCODER_FILE, DECODER_FILE)
        )

    def encode(self, source: Tensor) -> "_State":
        """Return the state before the first step."""
        ids = source.numpy()
        keys, values = self.encoder.run(None, {"source": ids})
        return _State([ids, keys, values, keys[:, :, :, :0], values[:, :, :, :0]])

    def start(self, state: "_State", rows_per_sentence: int) -> "_State":
        """Return the state itself."""
        assert rows_per_sentence == 1, "beam search needs a cache of several rows"
        return state

    def step(self, last_ids: Tensor, state: "_State") -> Tensor:
        """Append `last_ids` [B] to the state; return the logits [B V] of the next token."""
        inputs = zip(_INPUTS, (last_ids.numpy(), *state.inputs), strict=True)
        logits, *state.inputs[3:] = self.decoder.run(None, dict(inputs))
        return torch.from_numpy(logits)


@dataclass
class _State:
    """Inputs of the decoder other than the last tokens."""

    inputs: list[NDArray[Any]]

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but these."""
        ids, *heads = self.inputs
        kept = sentences.numpy()
        self.inputs = [ids[kept], *(array[:, kept] for array in heads)]
