"""Export to ONNX: arithmetic of its graphs, bad input, proof by onnxruntime, page for browsers."""

import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from mt.config import ModelConfig
from mt.data.sentencepiece_model import with_normal_form
from mt.data.tokenizer import Tokenizer, Vocabulary
from mt.export.onnx import DecoderGraph, EncoderGraph, write_graphs
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS, PAD
from tests.factories import (
    Program,
    Refused,
    contents,
    foreign_vocabulary,
    run_process,
    transformer,
)

PAGE = Path(__file__).parents[2] / "examples" / "browser"
ONNX = ("--to", "onnx", "--device", "cpu")
MISSING = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
needs_packages = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed")
needs_node = pytest.mark.skipif(which("node") is None, reason="node is not installed")
POSITIONAL: Sequence[str] = get_args(ModelConfig.model_fields["positional"].annotation)
SIZES = {"heads": 4, "kv_heads": 2, "d_head": 6, "d_value": 4, "relative_clip": 2}
SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD], [11, EOS, PAD, PAD, PAD]])
TARGET_IN = torch.tensor([[BOS, 12, 13, 14], [BOS, 15, 16, 9], [BOS, 17, 8, 18]])


def build(positional: str) -> Transformer:
    depths = {"d_model": 16, "d_ff": 20, "encoder_layers": 1, "decoder_layers": 2}
    return transformer(**depths, **SIZES, positional=positional, feed_forward="swiglu").eval()


def logits_of_steps(encoder: Any, decoder: Any) -> Tensor:
    keys, values = encoder(SOURCE)
    past, steps = (keys[:, :, :, :0], values[:, :, :, :0]), []
    for last_ids in TARGET_IN.T:
        logits, *past = decoder(last_ids, SOURCE, keys, values, *past)
        steps.append(logits)
    return torch.stack(steps, dim=1)


def logits_of(model: Transformer) -> Tensor:
    logits: Tensor = model.output(model.decode(TARGET_IN, model.encode(SOURCE)))
    return logits


@pytest.mark.parametrize("positional", POSITIONAL)
@torch.inference_mode()
def test_the_graphs_compute_the_logits_of_the_model(positional: str) -> None:
    model = build(positional)
    steps = logits_of_steps(EncoderGraph(model), DecoderGraph(model))
    torch.testing.assert_close(steps, logits_of(model), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_packages
@pytest.mark.parametrize("positional", POSITIONAL)
@pytest.mark.filterwarnings("ignore")
def test_onnxruntime_computes_the_logits_of_the_model(positional: str, tmp_path: Path) -> None:
    import onnxruntime

    model = build(positional)
    write_graphs(tmp_path, model, 16, "none")

    def load(name: str) -> Any:
        session = onnxruntime.InferenceSession(tmp_path / name)
        names = [node.name for node in session.get_inputs()]

        def compute(*inputs: Tensor) -> list[Tensor]:
            feed = dict(zip(names, (tensor.numpy() for tensor in inputs), strict=True))
            return [torch.from_numpy(array) for array in session.run(None, feed)]

        return compute

    with torch.no_grad():
        steps = logits_of_steps(load("encoder.onnx"), load("decoder.onnx"))
        torch.testing.assert_close(steps, logits_of(model), atol=1e-5, rtol=1e-5)


@needs_packages
def test_an_export_has_graphs_tokenizer_and_metadata(run: Path, program: Program) -> None:
    status, out, err = program("export", run, *ONNX)
    assert (status, err) == (0, "")
    assert "7 of 7 lines identical" in out
    output = run / "onnx"
    names = ["decoder.onnx", "encoder.onnx", "metadata.json", "parity.json", "tokenizer"]
    assert sorted(path.name for path in output.iterdir()) == names
    size = sum((output / name).stat().st_size for name in names[:2])
    assert f"encoder.onnx and decoder.onnx: {size:,} bytes\n" in out
    metadata = json.loads((output / "metadata.json").read_text())
    assert metadata["special_ids"] == {"pad": 0, "unk": 1, "bos": 2, "eos": 3}
    assert metadata["weights"] == json.loads((run / "model.json").read_text())["weights"]
    one, other = (Tokenizer.load(folder / "tokenizer").fingerprint for folder in (output, run))
    assert one == other
    read = set(re.findall(r"metadata\.(\w+)", (PAGE / "translator.js").read_text()))
    assert read - {"json"} <= metadata.keys()
    assert json.loads((output / "parity.json").read_text())["identical"] == 7
    status, _, err = program("export", run, *ONNX)
    assert (status, err) == (2, f"error: {output}: exists already; name another --output\n")


@needs_packages
def test_a_quantized_export_is_smaller(run: Path, program: Program) -> None:
    status, out, _ = program("export", run, *ONNX, "--quantization", "int8", "--force")
    assert status == 0
    sizes = re.search(r"decoder\.onnx: ([\d,]+) bytes, in float32 ([\d,]+)\n", out)
    assert sizes is not None
    small, whole = (int(size.replace(",", "")) for size in sizes.groups())
    assert small < whole
    assert json.loads((run / "onnx-int8" / "metadata.json").read_text())["quantization"] == "int8"


@needs_packages
def test_an_export_that_translates_otherwise_is_not_kept(
    run: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt.export.onnx.PAD", EOS)  # EOS of the source is hidden
    before = contents(run)
    status, _, err = program("export", run, *ONNX)
    assert status == 1
    assert re.match(r"not exported: \d of 7 lines have equal translations", err)
    assert contents(run) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("--quantization", "int16"),
        ("--output", "{0}/tokenizer"),
        ("--output", "{0}/none/onnx"),
        ("--force",),
        ("--quantization", "int8", "--sample", "{0}/config.yaml"),
    ],
)
def test_bad_input_is_one_line(
    arguments: Sequence[str], run: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt.export.onnx.find_spec", lambda _: True)
    before = contents(run)
    refused("export", run, *ONNX, *(part.format(run) for part in arguments))
    assert contents(run) == before


def test_missing_packages_and_too_large_weights_are_refused(
    run: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt.export.onnx.find_spec", lambda name: name == "onnx" or None)
    assert "onnxscript and onnxruntime" in refused("export", run, *ONNX)
    monkeypatch.setattr("mt.export.onnx.find_spec", lambda _: True)
    monkeypatch.setattr("mt.export.onnx.MAX_BYTES", 1000)
    assert "less than 2 GiB" in refused("export", run, *ONNX)


def test_the_page_imports_what_exists_and_no_host() -> None:
    package = json.loads((PAGE / "package.json").read_text())
    texts = {path.name: path.read_text() for path in PAGE.iterdir() if path.is_file()}
    for text in texts.values():
        assert "://" not in text
        for name in re.findall(r'from "\./([^"]+)"', text):
            module = name.removeprefix("node_modules/").partition("/")[0]
            assert name in texts or module in package["dependencies"]


_NODE = """
import fs from "node:fs";
const [page, model] = process.argv.slice(1);
const module = await import(page);
const vocabulary = new module.Vocabulary(new Uint8Array(fs.readFileSync(model)));
const ids = JSON.parse(fs.readFileSync(0, "utf8")).map((line) => vocabulary.encode(line));
console.log(JSON.stringify(ids.map((line) => [line, vocabulary.decode(line)])));
"""
LINES = [
    *("", "  ", "one two", " two  three ", "four,five.", "7 men & 8 women", "tone toned seventeen"),
    *("Cafe\u0301 17", "\ufeffx\u00ad y\u200b", "\x85a\x1cb", "\u2581x\U000f2581y"),
    *("\uff21\uff42\uff43\u3000\uff11\uff12\uff01", "\ufb01ne \uff76\uff9e", "\U0001f642\u200d"),
    *("\u65e5\u672c\u8a9e", "\u0e44\u0e17\u0e22 \u10d0\u10d1"),
]


@needs_node
@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@pytest.mark.parametrize("has_bytes", [True, False])
def test_the_page_tokenizes_as_mt(*, algorithm: str, has_bytes: bool, tmp_path: Path) -> None:
    words = [
        f"{first}{last}" for first in ("seven", "eigh", "nine", "four") for last in ("teen", "ty")
    ]
    text = [f"one two {word}, {other}s 17 men." for word in words for other in words]
    trained = foreign_vocabulary(text, 330, model_type=algorithm, byte_fallback=has_bytes)
    model = trained.processor.serialized_model_proto()
    if has_bytes:  # as in a tokenizer of `mt train`
        model = with_normal_form(model)
    path = tmp_path / "joint.model"
    path.write_bytes(model)
    vocabulary = Vocabulary.from_model(model)
    tokenizer = Tokenizer(vocabulary, vocabulary, fingerprint="")
    command = ["node", "--input-type=module", "--eval", _NODE, PAGE / "vocabulary.js", path]
    printed = run_process(*command, input=json.dumps(LINES))
    encoded = tokenizer.encode_source(LINES)
    expected = [[ids, tokenizer.decode_target(ids)] for ids in encoded]
    assert json.loads(printed) == expected
    assert len({token for ids in encoded for token in ids}) > 20
