"""Fine-tuning: what a run takes over from another, and what it does not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mt.config import Config
from mt.config.loading import dump_config, load_config
from mt.data.pairs import SentencePair
from mt.data.tokenizer import Tokenizer, copy_tokenizer, extend_tokenizer, train_tokenizer
from mt.data.vocabulary import Vocabulary
from mt.errors import ConfigError, RunError
from mt.files import file_sha256
from mt.model.transformer import Transformer
from mt.model.weights import load_parameters, parameter_tensors
from mt.special_ids import BOS, EOS
from mt.training import trainer as spine
from mt.training.checkpoint import Checkpoints
from mt.training.initial_weights import check_initial_run, load_initial_weights
from mt.training.run_folder import RunFolder
from mt.training.step import TrainingPass
from mt.training.trainer import train

Program = Callable[..., tuple[int, str, str]]
Write = Callable[..., Config]
OLD_PAIRS = [
    SentencePair(f"the {animal} sleeps", f"{tier} schläft")
    for animal, tier in [("dog", "der Hund"), ("cat", "die Katze"), ("horse", "das Pferd")]
]
NEW_PAIRS = [
    SentencePair(f"the patient takes {name}", f"der Patient nimmt {name} 药")
    for name in ("antibiotics", "penicillin", "antihistamines")
] * 5


DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class Death(BaseException):
    """What `kill -9` or a power cut is to a run: it ends at once, and saves nothing."""


def build(config: Config, tokenizer: Tokenizer) -> Transformer:
    return Transformer(
        config.model,
        source_vocabulary=tokenizer.source_size,
        target_vocabulary=tokenizer.target_size,
    ).eval()


@pytest.fixture
def write_run(tiny_recipe: Path, tmp_path: Path) -> Write:
    """Return a function that writes a finished run of random weights; it returns its config."""

    def write(*settings: str, name: str = "old", pairs: list[SentencePair] = OLD_PAIRS) -> Config:
        run = tmp_path / name
        config = load_config(tiny_recipe, overrides=["tokenizer.vocabulary_size=330", *settings])
        tokenizer = train_tokenizer(
            lambda: iter(pairs), run / "tokenizer", config=config.tokenizer, seed=1
        )
        save_file(parameter_tensors(build(config, tokenizer)), run / "model.safetensors")
        (run / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        description = {
            "format": 1,
            "source_vocabulary": tokenizer.source_size,
            "target_vocabulary": tokenizer.target_size,
            "longest_source": 16,
            "tokenizer": tokenizer.fingerprint,
            "weights": file_sha256(run / "model.safetensors"),
        }
        (run / "model.json").write_text(json.dumps(description), encoding="utf-8")
        return config

    return write


def beginning_with(run: Path, config: Config, *, added_tokens: int = 0) -> Config:
    training = config.training.model_copy(update={"init_from": run})
    tokenizer = config.tokenizer.model_copy(update={"added_tokens": added_tokens})
    return config.model_copy(update={"training": training, "tokenizer": tokenizer})


def extended_tokenizer(run: Path, config: Config) -> Tokenizer:
    folder = run.parent / "extended"
    return extend_tokenizer(
        run, folder, pairs=lambda: iter(NEW_PAIRS), config=config.tokenizer, seed=1
    )


def saved_model(run: Path, config: Config) -> Transformer:
    """Return the model of a run, loaded without any of what is tested here."""
    model = build(config, Tokenizer.load(run / "tokenizer"))
    load_parameters(model, load_file(run / "model.safetensors"), "")
    return model


def batch_of(tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    source = tokenizer.encode_source([pair.source for pair in OLD_PAIRS])
    target = tokenizer.encode_target([pair.target for pair in OLD_PAIRS])
    rows = [ids[:6] for ids in source], [[BOS, *ids[:5]] for ids in target]
    return torch.tensor(rows[0]), torch.tensor(rows[1])


LAYOUTS = [
    ("joint", "all"),
    ("joint", "decoder"),
    ("joint", "none"),
    ("separate", "decoder"),
    ("separate", "none"),
]
each_layout = pytest.mark.parametrize(("vocabulary", "tied"), LAYOUTS)


@each_layout
def test_with_the_same_tokenizer_the_model_is_the_same(
    vocabulary: str, tied: str, write_run: Write, tmp_path: Path
) -> None:
    run = tmp_path / "old"
    config = write_run(f"tokenizer.vocabulary={vocabulary}", f"model.tie_embeddings={tied}")
    tokenizer = copy_tokenizer(run, tmp_path / "copy")
    model = build(config, tokenizer)
    torch.manual_seed(9)
    told = load_initial_weights(model, beginning_with(run, config), tokenizer)
    assert told[0] == f"begins with the weights of {run}"
    sizes = dict.fromkeys([tokenizer.source_size, tokenizer.target_size])
    assert [line.partition(": ")[2] for line in told[1:]] == [f"{n} rows copied" for n in sizes]
    tensors = load_file(run / "model.safetensors")
    assert tensors.keys() == parameter_tensors(model).keys()
    for name, tensor in parameter_tensors(model).items():
        assert torch.equal(tensor, tensors[name]), name
    source, target_in = batch_of(tokenizer)
    with torch.inference_mode():
        here, there = model(source, target_in), saved_model(run, config)(source, target_in)
    assert torch.equal(here, there)


@each_layout
def test_with_added_tokens_the_logits_of_the_old_ones_are_the_same(
    vocabulary: str, tied: str, write_run: Write, tmp_path: Path
) -> None:
    run = tmp_path / "old"
    config = write_run(f"tokenizer.vocabulary={vocabulary}", f"model.tie_embeddings={tied}")
    config = beginning_with(run, config, added_tokens=25)
    old, new = Tokenizer.load(run / "tokenizer"), extended_tokenizer(run, config)
    model = build(config, new)
    told = load_initial_weights(model, config, new)
    for side in ("source", "target") if vocabulary == "separate" else ("",):
        size = old.target_size if side == "target" else old.source_size
        (line,) = (line for line in told if line.startswith(f"{side} vocabulary: ".lstrip()))
        assert f": {size} rows copied, 25 new ones are the mean of their tokens' rows" in line
    source, target_in = batch_of(old)
    with torch.inference_mode():
        here, there = model(source, target_in), saved_model(run, config)(source, target_in)
    assert here.shape[1] == there.shape[1] + 25
    # A matrix product of another width may add up in another order.
    torch.testing.assert_close(here[:, : old.target_size], there, rtol=1e-6, atol=1e-6)


def expected_row(matrix: Tensor, new: Vocabulary, number: int, old: Vocabulary) -> Tensor:
    """Return a row, found by reading the old tokens out of the old encoding of a text."""
    if number < len(old):
        return matrix[number]
    text = new.token_bytes[number].decode()
    # Encoding puts a space in front; after a line break, which no token has, it stands alone.
    (ids,) = old.encode([text[1:] if text.startswith(" ") else f"\n{text}"])
    (first,) = old.encode([] if text.startswith(" ") else ["\n"]) or [[EOS]]
    parts = ids[len(first) - 1 : -1]
    assert b"".join(old.token_bytes[part] for part in parts) == new.token_bytes[number]
    return torch.stack([matrix[part] for part in parts]).double().mean(0).float()


@each_layout
def test_the_row_of_a_new_token_is_the_mean_of_its_tokens(
    vocabulary: str, tied: str, write_run: Write, tmp_path: Path
) -> None:
    run = tmp_path / "old"
    config = write_run(f"tokenizer.vocabulary={vocabulary}", f"model.tie_embeddings={tied}")
    config = beginning_with(run, config, added_tokens=25)
    old, new = Tokenizer.load(run / "tokenizer"), extended_tokenizer(run, config)
    model = build(config, new)
    load_initial_weights(model, config, new)
    before, after = load_file(run / "model.safetensors"), parameter_tensors(model)
    matrices = {"source_embedding.weight", "target_embedding.weight", "output.weight"}
    assert len(matrices & after.keys()) == {"all": 1, "decoder": 2, "none": 3}[tied]
    for name in matrices & after.keys():
        side = "source" if name.startswith("source") else "target"
        was, now = getattr(old, side), getattr(new, side)
        assert len(after[name]) == len(now) == len(was) + 25
        for number, row in enumerate(after[name]):
            torch.testing.assert_close(row, expected_row(before[name], now, number, was))
    for name in after.keys() - matrices:
        assert torch.equal(after[name], before[name]), name


def test_with_another_tokenizer_rows_follow_the_tokens(write_run: Write, tmp_path: Path) -> None:
    config = write_run()
    run, other = tmp_path / "old", tmp_path / "other"
    write_run("tokenizer.algorithm=unigram", name="other", pairs=[*OLD_PAIRS, *NEW_PAIRS])
    old, new = (Tokenizer.load(folder / "tokenizer") for folder in (run, other))
    model = build(config, new)
    (*_, told) = load_initial_weights(model, beginning_with(run, config), new)
    before = load_file(run / "model.safetensors")["target_embedding.weight"]
    after = model.target_embedding.weight.detach()
    known = {old.source.processor.id_to_piece(number): number for number in range(len(old.source))}
    tokens = [new.source.processor.id_to_piece(number) for number in range(len(new.source))]
    moved = [(number, known[token]) for number, token in enumerate(tokens) if token in known]
    assert any(here != there for here, there in moved)
    for here, there in moved:
        assert torch.equal(after[here], before[there])
    new_tokens = len(tokens) - len(moved)
    assert 0 < new_tokens < len(tokens)
    assert f"{len(moved)} rows copied, {new_tokens} new ones" in told


def test_a_run_that_begins_with_nothing_keeps_the_weights_it_drew(
    write_run: Write, tmp_path: Path
) -> None:
    config = write_run()
    tokenizer = Tokenizer.load(tmp_path / "old" / "tokenizer")
    model = build(config, tokenizer)
    drawn = {name: tensor.clone() for name, tensor in parameter_tensors(model).items()}
    assert load_initial_weights(model, config, tokenizer) == []
    for name, tensor in parameter_tensors(model).items():
        assert torch.equal(tensor, drawn[name])


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("model.d_model=64", "`model.d_model`: 64 here, 32 in RUN"),
        ("model.encoder_layers=2", "`model.encoder_layers`: 2 here, 1 in RUN"),
        ("model.heads=4", "`model.heads`: 4 here, 2 in RUN"),
        ("model.norm=rmsnorm", "`model.norm`: rmsnorm here, layernorm in RUN"),
        ("model.residual=pre", "`model.residual`: pre here, post in RUN"),
        ("model.positional=alibi", "`model.positional`: alibi here, sinusoidal in RUN"),
        ("model.feed_forward=gelu", "`model.feed_forward`: gelu here, relu in RUN"),
        ("model.attention_temperature=2.0", "`model.attention_temperature`: 2.0 here, 1.0 in RUN"),
        ("model.norm_epsilon=1e-6", "`model.norm_epsilon`: 1e-06 here, 1e-05 in RUN"),
        ("model.tie_embeddings=none", "`model.tie_embeddings`: none here, all in RUN"),
        (
            "model={d_model: 64, d_ff: 99, heads: 4, encoder_layers: 1, decoder_layers: 2}",
            "`model.d_model`: 64 here, 32 in RUN; `model.d_ff`: 99 here, 64 in RUN; "
            "`model.heads`: 4 here, 2 in RUN; and 1 more",
        ),
    ],
)
def test_another_model_is_refused_by_its_keys(
    setting: str, told: str, finished_run: Path, tiny_recipe: Path
) -> None:
    config = load_config(tiny_recipe, overrides=[setting])
    with pytest.raises(RunError) as caught:
        check_initial_run(config, finished_run)
    expected = f"{finished_run}: is of another model than the config: {told}"
    assert str(caught.value) == expected.replace("RUN", str(finished_run))


@pytest.mark.parametrize(
    "setting",
    [
        "model.dropout=0.3",
        "model.attention_dropout=0.1",
        "model.feed_forward_dropout=0.1",
        "model.encoder_dropout=[0.2]",
        "training.learning_rate=1e-5",
        "seed=7",
    ],
)
def test_dropout_and_what_is_no_model_may_differ(
    setting: str, finished_run: Path, tiny_recipe: Path
) -> None:
    config = load_config(tiny_recipe, overrides=[setting])
    checksum = check_initial_run(config, finished_run)
    assert checksum == file_sha256(finished_run / "model.safetensors")


# Whole runs.


@pytest.fixture(scope="session")
def other_recipe(
    tiny_recipe: Path, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A recipe of the same model for another corpus: the digits in Chinese and Greek."""
    folder = tmp_path_factory.mktemp("other")
    words = ["零", "一", "二", "三", "τεσσερα", "πεντε", "εξι", "七", "οκτω", "九"]
    translated = dict(zip(DIGITS, words, strict=True))
    for path in tiny_corpus.glob("*.en"):
        shutil.copy(path, folder)
        lines = [line.split() for line in path.read_text().splitlines()]
        text = "".join(f"{' '.join(translated[word] for word in line)}\n" for line in lines)
        (folder / f"{path.stem}.de").write_text(text, encoding="utf-8")
    recipe = folder / "other.yaml"
    recipe.write_text(tiny_recipe.read_text().replace(str(tiny_corpus), str(folder)))
    return recipe


def fine_tune(recipe: Path, run: Path, *settings: str) -> str:
    return train(load_config(recipe, overrides=settings), run)


def weights_at_the_first_update(
    monkeypatch: pytest.MonkeyPatch,
) -> list[dict[str, Tensor]]:
    """Have the first forward pass of a training leave the weights that it was made with.

    Its memory is not counted before: that is a pass too, of weights without values.
    """
    monkeypatch.setattr(spine, "warn_of_low_memory", lambda *_: None)
    seen: list[dict[str, Tensor]] = []
    forward = TrainingPass.forward

    def recorded(self: TrainingPass, *arguments: Any) -> Any:
        if not seen:
            seen.append({k: v.clone() for k, v in parameter_tensors(self.model).items()})
        return forward(self, *arguments)

    monkeypatch.setattr(TrainingPass, "forward", recorded)
    return seen


def test_a_run_begins_with_the_weights_and_the_tokenizer_of_another(
    finished_run: Path,
    tiny_recipe: Path,
    tmp_path: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, seen = tmp_path / "run", weights_at_the_first_update(monkeypatch)
    options = ["--run", run, "--set", "training.max_updates=3", "--set", "seed=2"]
    status, _, err = program("train", tiny_recipe, "--init-from", finished_run, *options)
    assert status == 0
    assert f"begins with the weights of {finished_run}\nvocabulary: 300 rows copied\n" in err
    old = load_file(finished_run / "model.safetensors")
    assert old.keys() == seen[0].keys()
    for name, tensor in seen[0].items():
        assert torch.equal(tensor, old[name])
    model, tokenizer = "tokenizer/joint.model", "tokenizer/tokenizer.json"
    for file in (model, tokenizer):
        assert (run / file).read_bytes() == (finished_run / file).read_bytes()
    assert json.loads((run / "model.json").read_text())["updates"] == 3
    assert load_config(run / "config.yaml").training.init_from == finished_run
    corpora = json.loads((run / "corpora.json").read_text())
    assert corpora["init_from"] == {"weights": file_sha256(finished_run / "model.safetensors")}


def test_a_run_with_added_tokens_says_which_they_are_and_begins_with_their_rows(
    finished_run: Path,
    other_recipe: Path,
    tmp_path: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, seen = tmp_path / "run", weights_at_the_first_update(monkeypatch)
    settings = ["training.max_updates=3", "tokenizer.added_tokens=30"]
    options = [part for setting in settings for part in ("--set", setting)]
    status, _, err = program(
        "train", other_recipe, "--init-from", finished_run, "--run", run, *options
    )
    assert status == 0
    assert (
        "\nvocabulary: 300 rows copied, 30 new ones are the mean of their tokens' rows, suc" in err
    )
    old = load_file(finished_run / "model.safetensors")["target_embedding.weight"]
    new = seen[0]["target_embedding.weight"]
    assert torch.equal(new[:300], old)
    tokenizer = Tokenizer.load(run / "tokenizer")
    number = tokenizer.target.processor.piece_to_id("零")
    assert 300 <= number < 330
    (parts,) = Tokenizer.load(finished_run / "tokenizer").encode_target(["零"])
    spelled = parts[-4:-1]  # its bytes; in front of them is the space, behind them the end mark
    torch.testing.assert_close(new[number], torch.stack([old[part] for part in spelled]).mean(0))
    # What was learnt is the new text, in new tokens, which come back out as text.
    status, out, _ = program("translate", run, stdin=b"one two\n")
    assert (status, out.count("\n")) == (0, 1)


@pytest.fixture(scope="session", params=[0, 20], ids=["same", "extended"])
def whole(
    request: pytest.FixtureRequest,
    finished_run: Path,
    other_recipe: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A fine-tuning that nobody stopped, with and without new tokens."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    settings = [f"tokenizer.added_tokens={request.param}", "training.max_updates=20"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        fine_tune(other_recipe, run, *settings, f"training.init_from={finished_run}")
    return run


@pytest.mark.parametrize("saved_before_death", [False, True])
def test_a_fine_tuning_that_dies_comes_to_the_same_even_without_what_it_began_with(
    saved_before_death: bool, whole: Path, finished_run: Path, tmp_path: Path
) -> None:
    origin = Path(shutil.copytree(finished_run, tmp_path / "origin"))
    settings = [f"training.init_from={origin}"]
    recipe = whole / "config.yaml"
    run, save = tmp_path / "run", Checkpoints.save

    def dies(self: Checkpoints, *arguments: Any) -> None:
        if saved_before_death:
            save(self, *arguments)
        raise Death

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", dies)
        with pytest.raises(Death):
            fine_tune(recipe, run, *settings)
    assert RunFolder(run).checkpoints.updates() == ([10] if saved_before_death else [])
    if saved_before_death:
        shutil.rmtree(origin)
    fine_tune(recipe, run, *settings)
    for file in ("model.safetensors", "corpora.json", "tokenizer/joint.model"):
        assert (run / file).read_bytes() == (whole / file).read_bytes(), file
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    resumed = [event["update"] for event in events if event["event"] == "resume"]
    assert resumed == ([10] if saved_before_death else [])


def test_the_average_of_the_weights_begins_with_them_too(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    settings = ["training.ema_decay=0.9", "training.learning_rate=1e-30", "training.max_updates=1"]
    fine_tune(tiny_recipe, tmp_path / "run", *settings, f"training.init_from={finished_run}")
    new, old = (load_file(run / "model.safetensors") for run in (tmp_path / "run", finished_run))
    for name, tensor in new.items():
        torch.testing.assert_close(tensor, old[name])


def test_another_origin_is_another_run(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    run, settings = tmp_path / "run", ["training.max_updates=1"]
    fine_tune(tiny_recipe, run, *settings)
    told = rf"another config \(training\.init_from: None -> {finished_run}\)"
    with pytest.raises(RunError, match=told):
        fine_tune(tiny_recipe, run, *settings, f"training.init_from={finished_run}")


def test_the_key_named_is_that_of_the_tokenizer_of_the_other_layout(
    finished_run: Path, write_run: Write, tiny_recipe: Path, tmp_path: Path
) -> None:
    settings = ["tokenizer.vocabulary=separate", "model.tie_embeddings=decoder"]
    write_run("model.tie_embeddings=decoder")
    with pytest.raises(ConfigError, match=r"`training\.init_from` .*/old: its vocabulary is joint"):
        fine_tune(tiny_recipe, tmp_path / "a", *settings, f"training.init_from={tmp_path}/old")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("gone", r"/tin: no such run folder; did you mean `tiny`\?$"),
        (
            "unfinished",
            r"/tiny: the training has not finished, model\.json is missing; .* continues",
        ),
        (
            "flipped",
            r"/tiny/model\.safetensors: damaged \(its SHA-256 is not the one in model\.json",
        ),
        ("tokenizer", r"/tiny/tokenizer/joint\.model: damaged"),
        ("empty", r"/tiny: not a run folder, config\.yaml is missing"),
    ],
)
def test_an_origin_that_is_none_is_told_before_any_work(
    damage: str, told: str, finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    origin = Path(shutil.copytree(finished_run, tmp_path / "tiny"))
    if damage == "unfinished":
        (origin / "model.json").unlink()
    elif damage == "empty":
        (origin / "config.yaml").unlink()
    elif damage in {"flipped", "tokenizer"}:
        path = (
            origin / {"flipped": "model.safetensors", "tokenizer": "tokenizer/joint.model"}[damage]
        )
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    named = tmp_path / "tin" if damage == "gone" else origin
    run = tmp_path / "run"
    with pytest.raises(RunError, match=told):
        fine_tune(tiny_recipe, run, f"training.init_from={named}")
    assert [path.name for path in run.iterdir() if path.name[0] != "."] == ["config.yaml"]
    if damage == "gone":  # and nothing stands in the way of another try
        fine_tune(tiny_recipe, run, "training.max_updates=1", f"training.init_from={origin}")
