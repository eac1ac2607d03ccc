"""A Marian folder of Hugging Face, such as those of OPUS-MT, as a finished run.

Tiedemann and Thottingal 2020 for OPUS-MT. The run translates as the folder does under transformers
and can be fine-tuned: `mt train --init-from`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mt.config import Config, DataConfig, DecodingConfig, ModelConfig
from mt.config.data import TextSource
from mt.config.load import dump_config
from mt.config.tokenizer import TokenizerConfig
from mt.data.tokenizer import Tokenizer, write_tokenizer
from mt.decoding.run_files import Provenance, write_description
from mt.errors import RunError
from mt.export.marian_folder import MarianFolder, MarianSettings, read_marian_folder
from mt.export.marian_length import alpha_of
from mt.export.marian_names import (
    DECODER_EMBEDDING,
    ENCODER_EMBEDDING,
    LM_HEAD,
    LOGITS_BIAS,
    OUTPUT,
    SHARED,
    SOURCE,
    TARGET,
    layer_tensors,
    sines_between,
    sines_first,
)
from mt.export.marian_vocabulary import MarianRows, source_vocabulary, target_vocabulary
from mt.files import aside, put_in_place, write_text
from mt.model.parameters import load_parameters
from mt.model.positional import sinusoids
from mt.model.transformer import Transformer
from mt.special_ids import PAD
from mt.training.checkpoint import save_tensors
from mt.training.run_folder import RunFolder

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")
_UNKNOWN_LANGUAGE = "und"  # ISO 639-2's word for it
_NO_CORPUS = "an imported model has no corpus"
_IMPOSSIBLE = -100.0
"""The logit of what Marian has no row for: e^-100 is nothing beside any other piece."""
_TABLE_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a folder."""

    languages: str
    parameters: int
    notes: tuple[str, ...]
    """What a user should know, such as a setting of the search that is another one here."""


def import_marian(path: Path, run: Path) -> Imported:
    """Write the Marian model of the folder `path` as the finished run `run`.

    Both sides get a vocabulary of their own, and the output layer a matrix of its own, into which
    Marian's bias of the logits goes; logits and pieces are the same but for rounding. Raises
    RunError for a folder that is damaged or of a model that ours cannot express, and for a `run`
    that is there already; nothing is left behind then.
    """
    if run.exists():
        raise RunError(f"{run}: exists already; name a folder that is not there yet")
    folder = read_marian_folder(path)
    if reason := _why_not_ours(folder.settings):
        raise RunError(f"{path}: {reason}")
    config, notes = _config(folder)
    # It takes its own name once it is complete.
    with aside(run) as temporary:
        parameters = _write(RunFolder(temporary), folder, config)
        put_in_place(temporary, run)
    languages = f"{config.data.source_language}-{config.data.target_language}"
    return Imported(languages, parameters, notes)


def our_weights(
    folder: MarianFolder, *, source_rows: list[int], target_rows: list[int]
) -> dict[str, Tensor]:
    """Return the weights of a Marian by our names; `..._rows` are Marian's rows of our ids.

    Raises RunError naming a tensor that is missing, or positions that are no sinusoids.
    """
    settings, model = folder.settings, _model(folder.settings)
    _check_positions(folder)
    encoder = _embedding(folder, ENCODER_EMBEDDING)
    decoder = _embedding(folder, DECODER_EMBEDDING)
    head = decoder if settings.tie_word_embeddings else _tensor(folder, LM_HEAD)
    bias = folder.weights.get(LOGITS_BIAS, torch.zeros(1, len(head)))[0]
    last = f"model.decoder.layers.{settings.decoder_layers - 1}.final_layer_norm"
    gain = _tensor(folder, f"{last}.weight")
    output = _with_bias(head, bias, gain=gain, shift=_tensor(folder, f"{last}.bias"), folder=folder)
    output = output[target_rows]
    if settings.pad_token_id == settings.decoder_start_token_id:
        # Of one row of Marian's we have made two, and it must not count twice.
        output[PAD] = _IMPOSSIBLE / (len(gain) * gain)
    scale = 1.0 if settings.scale_embedding else settings.d_model**-0.5
    found = {
        SOURCE: sines_between(scale * encoder[source_rows], 1),
        TARGET: sines_between(scale * decoder[target_rows], 1),
        OUTPUT: sines_between(output, 1),
    }
    for named in layer_tensors(model):
        # `_with_bias` has given the last norm another shift.
        tensor = gain if named.theirs == f"{last}.bias" else _tensor(folder, named.theirs)
        found[named.ours] = sines_between(tensor, named.states_axis).contiguous()
    return found


def _with_bias(
    output: Tensor, bias: Tensor, *, gain: Tensor, shift: Tensor, folder: MarianFolder
) -> Tensor:
    """Return an output matrix [V D] that gives output @ x + bias, for a last norm of shift `gain`.

    The last norm's x = gain * n + shift, and the features of n sum to zero. With the shift set to
    the gain, x' = gain * (n + 1), so x' / gain sums to D whatever the text: adding c / gain to a
    row of the matrix adds c D to its logit.
    """
    if bool((gain == 0).any()):
        raise RunError(f"{folder.path}: the decoder's last norm has a gain of zero")
    output, bias, gain, shift = output.double(), bias.double(), gain.double(), shift.double()
    added = bias - output @ (gain - shift)
    return (output + added[:, None] / (len(gain) * gain)).float()


def _why_not_ours(settings: MarianSettings) -> str | None:
    for name in ("ffn_dim", "attention_heads"):
        encoder, decoder = (
            getattr(settings, f"encoder_{name}"),
            getattr(settings, f"decoder_{name}"),
        )
        if encoder != decoder:
            return (
                f"`encoder_{name}` {encoder} is not `decoder_{name}` {decoder}; here they are one"
            )
    if settings.activation_function not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        return f"`activation_function` {settings.activation_function}: known are {known}"
    if settings.d_model % 2 or settings.d_model % settings.encoder_attention_heads:
        return f"`d_model` {settings.d_model} is odd, or no multiple of the attention heads"
    return None


def _check_positions(folder: MarianFolder) -> None:
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_positions.weight"
        table = folder.weights.get(name)
        if table is None:
            continue  # transformers computes it then, as we do
        expected = sines_first(sinusoids(len(table), folder.settings.d_model), 1)
        if float((table - expected).abs().max()) > _TABLE_TOLERANCE:
            raise RunError(f"{folder.path}: `{name}` is no table of sinusoids")


def _embedding(folder: MarianFolder, name: str) -> Tensor:
    """Return the matrix of a side, which is the shared one where that is what both sides have.

    Where `tie_word_embeddings` is false, transformers 4 shares it between the sides nevertheless
    and has no other one in its file; transformers 5 shares nothing then.
    """
    settings = folder.settings
    shared = settings.share_encoder_decoder_embeddings
    if shared and (settings.tie_word_embeddings or name not in folder.weights):
        return _tensor(folder, SHARED)
    return _tensor(folder, name)


def _tensor(folder: MarianFolder, name: str) -> Tensor:
    if name not in folder.weights:
        raise RunError(f"{folder.path}: damaged, its weights lack `{name}`")
    return folder.weights[name]


def _write(run: RunFolder, folder: MarianFolder, config: Config) -> int:
    """Write the files of a run, its description last; return how many parameters it has."""
    tokenizer, source_rows, target_rows = _write_tokenizer(run, folder)
    weights = our_weights(folder, source_rows=source_rows, target_rows=target_rows)
    model = Transformer(
        config.model,
        source_vocabulary=tokenizer.source_size,
        target_vocabulary=tokenizer.target_size,
    )
    load_parameters(model, weights, str(folder.path))
    save_tensors(weights, run.weights)
    write_text(run.config, dump_config(config))
    write_description(
        run.path,
        tokenizer,
        longest_source=folder.settings.max_position_embeddings,
        provenance=Provenance(f"imported from {folder.path}"),
    )
    return sum(tensor.numel() for tensor in weights.values())


def _write_tokenizer(
    run: RunFolder, folder: MarianFolder
) -> tuple[Tokenizer, list[int], list[int]]:
    """Write both vocabularies; return them and the rows of Marian's that their ids take."""
    settings = folder.settings
    target_count = settings.decoder_vocab_size or settings.vocab_size
    try:
        source, source_rows = source_vocabulary(
            folder.source_spm, _rows(folder, folder.source_ids, settings.vocab_size)
        )
        target, target_rows = target_vocabulary(
            folder.target_spm, _rows(folder, folder.target_ids, target_count)
        )
    except ValueError as error:
        raise RunError(f"{folder.path}: source.spm or target.spm {error}") from error
    if max(source_rows) >= settings.vocab_size or max(target_rows) >= target_count:
        raise RunError(f"{folder.path}: vocab.json has more ids than the model has rows")
    return write_tokenizer(run.tokenizer, source=source, target=target), source_rows, target_rows


def _rows(folder: MarianFolder, ids: dict[str, int], count: int) -> MarianRows:
    settings = folder.settings
    return MarianRows(
        ids,
        count,
        pad=settings.pad_token_id,
        unk=ids[folder.tokenizer.unk_token],
        start=settings.decoder_start_token_id,
        eos=settings.eos_token_id,
    )


def _config(folder: MarianFolder) -> tuple[Config, tuple[str, ...]]:
    """Return a run's config, and what a user should know of it."""
    decoding, notes = _decoding(folder)
    none = TextSource(source=_NO_CORPUS, target=_NO_CORPUS)
    languages = [folder.tokenizer.source_lang or "", folder.tokenizer.target_lang or ""]
    source, target = (
        code if _LANGUAGE.fullmatch(code) else _UNKNOWN_LANGUAGE for code in languages
    )
    data = DataConfig(source_language=source, target_language=target, train=none, valid=none)
    config = Config(
        data=data,
        tokenizer=TokenizerConfig(vocabulary="separate"),
        model=_model(folder.settings),
        decoding=decoding,
    )
    return config, notes


def _model(settings: MarianSettings) -> ModelConfig:
    return ModelConfig.model_validate(
        {
            "d_model": settings.d_model,
            "d_ff": settings.encoder_ffn_dim,
            "heads": settings.encoder_attention_heads,
            "encoder_layers": settings.encoder_layers,
            "decoder_layers": settings.decoder_layers,
            "feed_forward": _ACTIVATIONS[settings.activation_function],
            "dropout": settings.dropout,
            "attention_dropout": settings.attention_dropout,
            "feed_forward_dropout": settings.activation_dropout,
            "tie_embeddings": "none",
        }
    )


def _decoding(folder: MarianFolder) -> tuple[DecodingConfig, tuple[str, ...]]:
    generation = folder.generation
    beams = generation.num_beams or 1
    exponent = 1.0 if generation.length_penalty is None else generation.length_penalty
    normalization = {0.0: "none", 1.0: "average"}.get(exponent, "gnmt")
    # Of all that it writes, transformers counts the piece that the decoder begins with.
    longest = generation.max_length or folder.settings.max_position_embeddings
    decoding = DecodingConfig.model_validate(
        {
            "search": "greedy" if beams == 1 else "beam",
            "beam": beams,
            "length_normalization": normalization,
            "length_penalty": min(max(alpha_of(exponent), 0.0), 10.0),
            "max_length_ratio": 0.0,
            "max_length_extra": max(longest - 1, 1),
            "no_repeat_ngram": generation.no_repeat_ngram_size or None,
        }
    )
    if normalization != "gnmt" or beams == 1:
        return decoding, ()
    note = (
        f"`length_penalty` {exponent:g} divides by length ** {exponent:g} in transformers; here "
        f"`decoding.length_normalization: gnmt` with `decoding.length_penalty: "
        f"{decoding.length_penalty:g}` is the most alike, so that a beam may end elsewhere"
    )
    return decoding, (note,)
