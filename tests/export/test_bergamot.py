"""Export to Bergamot: format, arithmetic by a second implementation, proof, and the npm engine."""

import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
import torch

from mt.config.loading import load_config
from mt.decoding.load import FinishedRun
from mt.export.bergamot import FORM, MODEL_FILES, write_bergamot
from mt.special_ids import BOS, EOS, PAD
from mt.training.trainer import train
from tests.factories import Program, Refused, contents, model_config, model_of

PAGE = Path(__file__).parents[2] / "examples" / "browser"
PACKAGE = PAGE / "node_modules" / "@browsermt" / "bergamot-translator"
HAS_ENGINE = which("node") is not None and PACKAGE.is_dir()
needs_engine = pytest.mark.skipif(not HAS_ENGINE, reason="needs `npm install` in examples/browser")
BERGAMOT = ("--to", "bergamot", "--device", "cpu")
SHAPE = {"d_model": 64, "d_ff": 128, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
VARIANTS: Any = ({}, {"tie_embeddings": "decoder"}, {"tie_embeddings": "none"}, {"bias": False})


@pytest.mark.parametrize("keys", VARIANTS, ids=str)
@pytest.mark.parametrize("quantization", MODEL_FILES)
def test_a_second_implementation_computes_the_logits_of_the_stored_weights(
    keys: Any, quantization: str, random_run: Callable[..., FinishedRun], tmp_path: Path
) -> None:
    run = random_run(model_config(**{**SHAPE, **FORM, **keys}))
    stored = write_bergamot(run, tmp_path, quantization)
    assert stored.keys() == run.weights.keys()
    for name, tensor in run.weights.items():
        is_rounded = tensor.ndim > 1 and quantization == "int8"
        limit = float(tensor.abs().max()) / 253 if is_rounded else 0.0
        torch.testing.assert_close(stored[name], tensor, atol=limit, rtol=0)
    source, target = [5, 6, 7, 8, EOS], [12, 13, 14, 9]
    with torch.no_grad():
        model = model_of(replace(run, weights=stored))
        expected = model(torch.tensor([source]), torch.tensor([[BOS, *target]])).numpy()
    logits = Marian(tmp_path / MODEL_FILES[quantization]).logits(source, target)
    assert logits.shape[1] % 8 == 0
    never = [PAD, BOS, *range(expected.shape[1], logits.shape[1])]
    assert (logits[:, never] < -5000).all()
    generated = np.delete(np.arange(expected.shape[1]), [PAD, BOS])
    assert float(expected.std()) > 0.3
    np.testing.assert_allclose(logits[:, generated], expected[:, generated], atol=2e-4)


def read_items(path: Path) -> dict[str, Any]:
    """Read type, shape and content of each tensor of a model in Marian's binary format."""
    content, at = path.read_bytes(), 16
    count = content[8]
    headers = np.frombuffer(content, "<u8", 4 * count, at).astype(int)
    lengths, kinds, axes, sizes = headers.reshape(count, 4).T
    at += 32 * count
    names = content[at:].split(b"\0", count)[:count]
    at += lengths.sum()
    shapes = np.split(np.frombuffer(content, "<i4", axes.sum(), at), np.cumsum(axes)[:-1])
    at += 4 * axes.sum()
    at += 8 + int.from_bytes(content[at : at + 8], "little")
    assert at % 256 == 0, "the engine reads aligned memory"
    assert len(content) == at + sizes.sum()
    contents = [
        content[end - size : end] for end, size in zip(at + np.cumsum(sizes), sizes, strict=True)
    ]
    return {name.decode(): item for name, *item in zip(names, kinds, shapes, contents, strict=True)}


class Marian:
    """A Transformer of Marian from its file, without this project's code for models."""

    def __init__(self, path: Path) -> None:
        self.items = read_items(path)
        text = self.items["special:model.yml"][2].rstrip(b"\0").decode()
        self.settings = dict(re.findall(r"^([\w-]+): (\S+)$", text, re.M))

    def __getitem__(self, name: str) -> Any:
        kind, shape, content = self.items[name]
        count = int(np.prod(shape))
        if kind == 0x404:
            return np.frombuffer(content, "<f4", count).reshape(shape).astype(float)
        numbers = np.frombuffer(content, np.int8, count) / np.frombuffer(content[count:], "<f4", 1)
        is_table = "Wemb" in name
        return numbers.reshape(shape) if is_table else numbers.reshape(shape[::-1]).T

    def logits(self, source: Sequence[int], target: Sequence[int]) -> Any:
        """Return a row for each token of the target and the one after them."""
        one = self.settings["tied-embeddings-all"] == "true"
        memory = self.embed(self["Wemb" if one else "encoder_Wemb"][source])
        for layer in range(1, int(self.settings["enc-depth"]) + 1):
            memory = self.attend(f"encoder_l{layer}_self", memory, memory)
            memory = self.transform(f"encoder_l{layer}_ffn", memory)
        table = self["Wemb" if one else "decoder_Wemb"]
        x = self.embed(np.concatenate((np.zeros((1, table.shape[1])), table[target])))
        causal = np.triu(np.full((len(x), len(x)), -1e8), 1)
        for layer in range(1, int(self.settings["dec-depth"]) + 1):
            x = self.attend(f"decoder_l{layer}_self", x, x, causal)
            x = self.attend(f"decoder_l{layer}_context", x, memory)
            x = self.transform(f"decoder_l{layer}_ffn", x)
        is_tied = one or self.settings["tied-embeddings"] == "true"
        matrix = table.T if is_tied else self["decoder_ff_logit_out_W"]
        return x @ matrix + self["decoder_ff_logit_out_b"]

    def embed(self, rows: Any) -> Any:
        half = rows.shape[1] // 2
        rates = np.exp(np.arange(half) * -np.log(10000) / (half - 1))
        angles = np.arange(len(rows))[:, None] * rates
        return rows * rows.shape[1] ** 0.5 + np.concatenate((np.sin(angles), np.cos(angles)), 1)

    def affine(self, x: Any, name: str, part: str) -> Any:
        return x @ self[f"{name}_W{part}"] + self[f"{name}_b{part}"]

    def norm(self, x: Any, name: str) -> Any:
        x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-9)
        return x * self[f"{name}_ln_scale"] + self[f"{name}_ln_bias"]

    def attend(self, name: str, x: Any, keys: Any, mask: Any = 0.0) -> Any:
        heads = int(self.settings["transformer-heads"])
        parts = (self.affine(x if part == "q" else keys, name, part) for part in "qkv")
        q, k, v = (part.reshape(len(part), heads, -1).transpose(1, 0, 2) for part in parts)
        scores = q @ k.transpose(0, 2, 1) / q.shape[2] ** 0.5 + mask
        weights = np.exp(scores - scores.max(2, keepdims=True))
        joined = weights / weights.sum(2, keepdims=True) @ v
        out = self.affine(joined.transpose(1, 0, 2).reshape(len(x), -1), name, "o")
        return self.norm(x + out, f"{name}_Wo")

    def transform(self, name: str, x: Any) -> Any:
        inner = np.maximum(self.affine(x, name, "1"), 0)
        return self.norm(x + self.affine(inner, name, "2"), f"{name}_ffn")


@pytest.fixture(scope="module")
def trained(tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run in the form of Bergamot; tests must not change it but for exports."""
    keys = {**SHAPE, **FORM, "encoder_layers": 1, "decoder_layers": 1}
    config, run = load_config(tiny_recipe), tmp_path_factory.mktemp("runs") / "marian"
    train(config.changed(model=config.model.changed(**keys)), run)
    return run


@pytest.mark.parametrize("quantization", MODEL_FILES)
def test_an_export_is_proven_and_kept(
    quantization: str, trained: Path, program: Program, refused: Refused
) -> None:
    folder = trained / f"proven-{quantization}"
    options = (*BERGAMOT, "--output", folder, "--quantization", quantization)
    status, out, err = program("export", trained, *options, *["--force"][: quantization == "int8"])
    assert (status, err) == (0, "")
    names = ["config.intgemm8bitalpha.yml", MODEL_FILES[quantization], "model_info.json"]
    assert sorted(path.name for path in folder.iterdir()) == [*names, "parity.json", "vocab.spm"]
    info = json.loads((folder / "model_info.json").read_text())
    assert (info["src"], info["trg"]) == ("English", "German")
    same = json.loads((folder / "parity.json").read_text())["identical"]
    assert same == 7 if quantization == "none" else same > 3
    assert f"{same} of 7 lines identical" in out
    assert f"{folder}: exists already" in refused("export", trained, *options[:6])


@pytest.mark.parametrize("to", ["ctranslate2", "huggingface"])
def test_the_other_exports_take_the_same_form(to: str, trained: Path, program: Program) -> None:
    options = ("--output", trained / to, "--device", "cpu")
    assert "7 of 7 lines identical" in program("export", trained, "--to", to, *options)[1]


ECHO = f"{shlex.quote(sys.executable)} -c 'import sys; sys.stdout.write(sys.stdin.read())'"
SHORT = f"{shlex.quote(sys.executable)} -c 'print(1)'"
ODD = (("'", "No closing quotation"), ("", "no program"), ("nosuch x", "no program `nosuch`"))
FAILS = f"{shlex.quote(sys.executable)} -c 'raise SystemExit(\"no engine\")'"


def test_a_program_is_the_proof(trained: Path, program: Program) -> None:
    before = contents(trained)
    new = ("--output", trained / "new")
    status, _, err = program("export", trained, *BERGAMOT, *new, "--proof", ECHO)
    assert (status, err[:24]) == (1, "not exported: 0 of 7 lin")
    for command, reason in ((SHORT, "1 lines for 7"), (FAILS, "no engine"), *ODD):
        status, _, err = program("export", trained, *BERGAMOT, *new, "--proof", command)
        assert (status, reason in err) == (2, True)
    assert contents(trained) == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--to", "bergamot"), "`model.d_model: 32` (only multiples of 64); see `mt init --for"),
        (
            ("--to", "bergamot"),
            "`model.positional: sinusoidal` (only marian), `model.decoder_start",
        ),
        (("--to", "ctranslate2", "--proof", ""), "--proof cannot be combined"),
    ],
)
def test_bad_input_is_one_line(
    arguments: Sequence[str], reason: str, run: Path, refused: Refused
) -> None:
    before = contents(run)
    assert reason in refused("export", run, *arguments)
    assert contents(run) == before


@needs_engine
def test_the_engine_translates_like_the_run(trained: Path, program: Program) -> None:
    command = shlex.join(["node", str(PAGE / "translate.js")])
    options = ("--output", trained / "by-engine", "--proof", command)
    status, out, err = program("export", trained, *BERGAMOT, *options)
    assert (status, err) == (0, "")
    assert "7 of 7 lines identical" in out


def test_the_page_imports_what_exists_and_no_host() -> None:
    package = json.loads((PAGE / "package.json").read_text())
    texts = {path.name: path.read_text() for path in PAGE.iterdir() if path.is_file()}
    for name, text in texts.items():
        assert "://" not in text or name == "package-lock.json"
        for module in re.findall(r'from "\./([^"]+)"', text):
            parts = module.removeprefix("node_modules/").rsplit("/", 1)
            assert module in texts or parts[0] in package["dependencies"]
