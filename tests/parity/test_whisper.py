"""Whisper against transformers: loud, fp64, disk to disk; and its spans that are hidden."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    GenerationMixin,
    WhisperConfig,
    WhisperForAudioClassification,
    WhisperForConditionalGeneration,
    WhisperModel,
)
from transformers.models.whisper import modeling_whisper

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.config import Spans
from allformer.core.sources import sound
from allformer.errors import CheckpointError, ConfigError, LengthError
from allformer.families.config_json import read_config, write_config
from allformer.generate import lean, stepper
from tests.parity import pictures, zoo
from tests.parity.zoo import Case

ROWS = 3
OUTPUTS = ("logits", "last_hidden_state", "encoder_last_hidden_state", "loss")
SIZES = {
    "vocab_size": 97, "num_mel_bins": 7, "d_model": 24, "encoder_layers": 3, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 3, "encoder_ffn_dim": 44,
    "decoder_ffn_dim": 52, "max_source_positions": 15, "max_target_positions": 17,
    "pad_token_id": 3, "bos_token_id": 4, "eos_token_id": 5, "decoder_start_token_id": 6,
    "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
MASKS = {
    "apply_spec_augment": True, "mask_time_prob": 0.3, "mask_time_length": 3,
    "mask_time_min_masks": 2, "mask_feature_prob": 0.3, "mask_feature_length": 2,
}  # fmt: skip


def whisper(**more: Any) -> Any:
    return functools.partial(WhisperConfig, **{**SIZES, **more})


CLASSES = {"num_labels": 5, "classifier_proj_size": 13}
NAMES = dict(enumerate(("oui", "non", "peut-être", "是的", "🎵")))  # transformers writes ASCII
CASES = [
    Case("Whisper", WhisperForConditionalGeneration, whisper()),
    Case(
        "Whisper, masked", WhisperForConditionalGeneration,
        whisper(
            **MASKS, activation_function="gelu_new", scale_embedding=True, encoder_layerdrop=0.1
        ),
    ),
    Case("Whisper bare", WhisperModel, whisper(encoder_layers=1)),
    Case("Whisper for classes", WhisperForAudioClassification, whisper(**CLASSES), labels="class"),
    Case(
        "Whisper, layers weighed", WhisperForAudioClassification,
        whisper(**CLASSES, use_weighted_layer_sum=True, id2label=NAMES, **MASKS), labels="class",
    ),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("whisper"))


def heard(case: Case, learn: bool = False, seed: int = 1) -> dict[str, Any]:
    """Frames, and what the case's class reads beside them."""
    make = torch.Generator().manual_seed(seed)
    frames = torch.randn(ROWS, 7, 30, generator=make, dtype=torch.float64)
    ids = torch.randint(7, 97, (ROWS, 9), generator=make)
    if case.labels == "class":
        more = {"labels": torch.tensor([0, 4, 2])} if learn else {}
    elif learn:
        ids[1, 6:] = -100
        more = {"labels": ids}
    else:
        more = {"decoder_input_ids": ids}
    return {"input_features": frames, **more}


def compare(case: Case, ours: Any, theirs: Any, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """Every output that transformers gives; both are returned. Its masks are put in in place."""
    own = {**inputs, "input_features": inputs["input_features"].clone()}
    with zoo.unrounded():
        mine, reference = ours(**inputs), theirs(**own)
    pictures.compare_outputs(case, mine, reference, OUTPUTS)
    return mine, reference


def check_whisper_forward(name: str, path: Path) -> None:
    case = BY_NAME[name]
    with torch.no_grad():
        compare(case, af.load(path), zoo.oracle(case), heard(case))


@each
def test_the_same_numbers(case: Case, written: dict[str, Path]) -> None:
    check_whisper_forward(case.name, written[case.name])


def check_padded_text(path: Path) -> None:
    case = BY_NAME["Whisper"]
    ours, theirs, inputs = af.load(path), zoo.oracle(case), heard(case)
    keep = torch.arange(9) < torch.tensor([9, 4, 1])[:, None]
    for mask in (keep, keep.flip(1)):
        given = {**inputs, "decoder_attention_mask": mask.long()}
        with torch.no_grad(), zoo.unrounded():
            mine, reference = ours(**given).logits[mask], theirs(**given).logits[mask]
        zoo.close(mine, reference, case, "logits")


def test_padding_of_the_text_is_left_out_on_either_side(written: dict[str, Path]) -> None:
    check_padded_text(written["Whisper"])


@contextmanager
def drawn_alike() -> Iterator[None]:
    """transformers' spans, drawn as ours are: one number for all rows, then places for each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "rand", lambda n: torch.rand(()).view(1).numpy())
        patch.setattr(
            np.random,
            "choice",
            lambda places, count, replace: torch.randperm(len(places))[:count].numpy(),
        )
        yield


def check_whisper_training(name: str, path: Path, folder: Path) -> None:
    """The loss, and every gradient by the name that its tensor has in a file; with the same masks
    where there are any."""
    case = BY_NAME[name]
    ours, theirs = af.load(path).train(), zoo.fresh_oracle(case).train()
    inputs = heard(case, learn=True)
    if case.name == "Whisper, masked":  # a mask of frames says where nothing need be hidden
        inputs["attention_mask"] = (torch.arange(30) < torch.tensor([30, 11, 24])[:, None]).long()
    own = {**inputs, "input_features": inputs["input_features"].clone()}
    with drawn_alike(), zoo.unrounded():
        torch.manual_seed(5)
        reference = theirs(**own)
        torch.manual_seed(5)
        mine = ours(**inputs)
    zoo.close(mine.loss, reference.loss, case, "loss")
    mine.loss.backward()
    reference.loss.backward()
    got, wanted = zoo.their_gradients(ours), pictures._in_a_file(theirs, folder)
    assert len(got) == len(wanted) - 1  # the stored sinusoids learn nothing
    for key, grad in got.items():
        zoo.close(grad, wanted[key], case, f"gradient of {key}")


@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "Whisper bare"])
def test_the_same_training(name: str, written: dict[str, Path], tmp_path: Path) -> None:
    check_whisper_training(name, written[name], tmp_path)


def check_masks(path: Path) -> None:
    case, model = BY_NAME["Whisper, masked"], af.load(path)
    inputs = heard(case)
    with torch.no_grad():
        quiet = [model(**inputs).logits for _ in range(2)]
        loud = [model.train()(**inputs).logits for _ in range(2)]
    assert torch.equal(*quiet)
    assert not torch.equal(*loud)


def test_masks_change_what_is_learned_and_nothing_else(written: dict[str, Path]) -> None:
    check_masks(written["Whisper, masked"])


SPANS = [
    (Spans(0.05, 10, 2), 300, None), (Spans(0.3, 3, 0), 20, [20, 11, 3]),
    (Spans(0.9, 4, 0), 13, None), (Spans(0.01, 6, 5), 25, [25, 25, 9]),
    (Spans(0.02, 4, 0), 16, None),
]  # fmt: skip


def check_spans(seed: int = 0) -> None:
    """transformers' masks, drawn with the same numbers."""
    for spans, width, lengths in SPANS:
        mask = None
        if lengths is not None:
            mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
        with drawn_alike():
            torch.manual_seed(seed)
            wanted = modeling_whisper._compute_mask_indices(
                (ROWS, width), spans.share, spans.length, mask, spans.least
            )
        torch.manual_seed(seed)
        got = sound.draw_spans(spans, ROWS, width, lengths)
        if mask is not None:  # of a row without a span transformers hides the last cell: padding
            wanted &= mask.bool().numpy()
        assert np.array_equal(got.numpy(), wanted), spans


@pytest.mark.parametrize("seed", range(8))
def test_spans_are_drawn_as_transformers_draws_them(seed: int) -> None:
    check_spans(seed)


@each
def test_round_trip(case: Case, written: dict[str, Path], tmp_path: Path) -> None:
    zoo.compare_round_trip(case, written[case.name], tmp_path / "again")
    for file in written[case.name].iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


def test_the_output_has_a_table_of_its_own_where_the_file_has_one(
    written: dict[str, Path], tmp_path: Path
) -> None:
    case, table = BY_NAME["Whisper"], "model.decoder.embed_tokens.weight"
    own = torch.randn(97, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for name, output, tied in (("copy", None, True), ("own", own, False)):
        path = zoo.rewrite(
            written["Whisper"],
            tmp_path / name,
            lambda x, y=output: {**x, "proj_out.weight": x[table].clone() if y is None else y},
        )
        ours, theirs = af.load(path), WhisperForConditionalGeneration.from_pretrained(path).double()
        assert ours.config.head.tied is tied
        with torch.no_grad():
            compare(case, ours, theirs.eval(), heard(case))
        af.save(ours, tmp_path / f"{name} again")
        assert af.load(tmp_path / f"{name} again").config == ours.config


# As published beside the weights of openai/whisper-large-v3, fields of generation included.
PUBLISHED_CONFIG = {
    "activation_dropout": 0.0, "activation_function": "gelu", "apply_spec_augment": False,
    "architectures": ["WhisperForConditionalGeneration"], "attention_dropout": 0.0,
    "begin_suppress_tokens": [220, 50257], "bos_token_id": 50257, "classifier_proj_size": 256,
    "d_model": 1280, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120,
    "decoder_layerdrop": 0.0, "decoder_layers": 32, "decoder_start_token_id": 50258,
    "dropout": 0.0, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
    "encoder_layerdrop": 0.0, "encoder_layers": 32, "eos_token_id": 50257, "init_std": 0.02,
    "forced_decoder_ids": [[1, 50259], [2, 50360], [3, 50364]], "is_encoder_decoder": True,
    "mask_feature_length": 10, "mask_feature_min_masks": 0, "mask_feature_prob": 0.0,
    "mask_time_length": 10, "mask_time_min_masks": 2, "mask_time_prob": 0.05, "max_length": 448,
    "max_source_positions": 1500, "max_target_positions": 448, "median_filter_width": 7,
    "model_type": "whisper", "num_hidden_layers": 32, "num_mel_bins": 128, "pad_token_id": 50256,
    "scale_embedding": False, "suppress_tokens": [1, 2, 7], "torch_dtype": "float16",
    "transformers_version": "4.36.0", "use_cache": True, "use_weighted_layer_sum": False,
    "vocab_size": 51866,
}  # fmt: skip


def test_a_published_config_means_the_preset_and_is_written_back() -> None:
    tree, known = read_config(PUBLISHED_CONFIG)
    assert tree == af.preset("whisper-large-v3")
    raw, _ = write_config(tree, known)
    assert raw == PUBLISHED_CONFIG


GENERATION = {
    "alignment_heads": [[1, 0], [1, 2]], "forced_decoder_ids": [[1, None], [2, 50]],
    "lang_to_id": {"<|en|>": 8}, "is_multilingual": True, "no_timestamps_token_id": 60,
    "suppress_tokens": [11, 12], "max_length": 17, "decoder_start_token_id": 6,
    "eos_token_id": 5, "pad_token_id": 3,
}  # fmt: skip


def test_what_generation_config_says_is_kept_and_used(
    written: dict[str, Path], tmp_path: Path
) -> None:
    source = zoo.rewrite(written["Whisper"], tmp_path / "source", lambda tensors: tensors)
    file = source / "generation_config.json"
    file.write_text(json.dumps(GENERATION))
    model = af.load(source)
    af.save(model, tmp_path / "again")
    assert json.loads((tmp_path / "again" / file.name).read_text()) == GENERATION
    frames = heard(BY_NAME["Whisper"])["input_features"]
    said = model.generate(input_features=frames)
    assert (said[:, 2] == 50).all()
    assert not torch.isin(said, torch.tensor([11, 12])).any()


@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 4}, {"suppress_tokens": [65, 8], "begin_suppress_tokens": [12]}],
    ids=["greedy", "beams", "suppressed"],
)
def test_generate_answers_what_it_hears(options: dict[str, Any], written: dict[str, Path]) -> None:
    case, model = BY_NAME["Whisper"], af.load(written["Whisper"])
    frames = heard(case)["input_features"]
    with torch.no_grad():
        wanted = GenerationMixin.generate(zoo.oracle(case), frames, max_new_tokens=12, **options)
    got = model.generate(input_features=frames, max_new_tokens=12, **options)
    assert got.tolist() == wanted.tolist()
    padded = torch.ones(ROWS, 30).long()  # of frames: silence is heard like all else
    padded[1, 20:] = 0
    again = model.generate(
        input_features=frames, attention_mask=padded, max_new_tokens=12, **options
    )
    assert torch.equal(again, got)


def test_keys_and_values_of_a_window_are_computed_once(
    written: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lean.lean_stepper in stepper.FASTER
    monkeypatch.setattr(stepper, "FASTER", [])  # so that the model is asked
    model = af.load(written["Whisper"])
    frames = heard(BY_NAME["Whisper"])["input_features"]
    calls = []
    for layer in model.decoder.layers:
        memory, plain = layer.cross.memory, layer.cross.memory.forward
        monkeypatch.setattr(memory, "forward", lambda x, own=plain: (calls.append(1), own(x))[1])
    model.generate(input_features=frames, max_new_tokens=10, num_beams=3, eos_token_id=None)
    assert len(calls) == len(model.decoder.layers)


PUBLISHED = {  # parameters that are learned, in millions (the paper's table 1, and its sequels)
    "tiny": 37.18, "tiny.en": 37.18, "base": 71.83, "base.en": 71.83, "small": 240.58,
    "small.en": 240.58, "medium": 762.32, "medium.en": 762.32, "large": 1541.38,
    "large-v2": 1541.38, "large-v3": 1541.57, "large-v3-turbo": 806.96,
}  # fmt: skip


def test_presets_have_the_published_sizes() -> None:
    count = {name: af.count(af.preset(f"whisper-{name}")).parameters for name in PUBLISHED}
    assert {name: round(n / 1e6, 2) for name, n in count.items()} == PUBLISHED


@pytest.mark.parametrize("name", ["tiny.en", "large-v3-turbo"])
def test_presets_are_transformers_models(name: str) -> None:
    tree = af.preset(f"whisper-{name}")
    raw, _ = write_config(tree)
    with torch.device("meta"):
        theirs = WhisperForConditionalGeneration(WhisperConfig(**raw))
        ours = af.build(tree, device="meta")
    learned = sum(p.numel() for p in theirs.parameters() if p.requires_grad)
    assert sum(p.numel() for p in ours.parameters()) == af.count(tree).parameters == learned


def test_a_converted_whisper_is_certified_on_sound(
    written: dict[str, Path], tmp_path: Path
) -> None:
    for name in ("Whisper", "Whisper for classes"):
        certificate = convert(written[name], tmp_path / name)
        assert certificate["sound"]
        assert "windows of 30 random frames of 7 mel bins" in certificate["outputs"][0]["inputs"]


def test_fresh_sinusoids_are_transformers() -> None:
    model = af.build(read_config({**SIZES, "model_type": "whisper"})[0], seed=0)
    wanted = modeling_whisper.sinusoids(15, 24)
    torch.testing.assert_close(model.encoder.source.position.weight, wanted)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"encoder_layerdrop": [0.1]}, "encoder_layerdrop=.0.1., which must be a number"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder=False"),
        ({"d_model": 27, "encoder_attention_heads": 3}, "even width"),
        ({"mask_time_length": 0, "apply_spec_augment": True}, "mask_time_length=0"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(field: dict[str, Any], why: str) -> None:
    with pytest.raises(CheckpointError, match=why):
        read_config({**SIZES, "model_type": "whisper", **field})


def test_inputs_that_do_not_fit_are_refused(written: dict[str, Path]) -> None:
    case = BY_NAME["Whisper"]
    model, inputs = af.load(written["Whisper"]), heard(case)
    frames = inputs.pop("input_features")
    for wrong in (frames[:, :6], frames[0], frames.long(), None):
        with pytest.raises(ConfigError, match=r"input_features=.*rows × 7 mel bins × frames"):
            model(input_features=wrong, **inputs)
    with pytest.raises(LengthError, match="of 32 frames are longer than the model's 30"):
        model(input_features=torch.randn(ROWS, 7, 32), **inputs)
    with pytest.raises(ConfigError, match=r"attention_mask=.*rows × frames, \(3, 30\)"):
        model(input_features=frames, attention_mask=torch.ones(ROWS, 15), **inputs)
    with pytest.raises(ConfigError, match="the encoder reads input_features"):
        model.generate(torch.ones(1, 3).long(), input_features=frames)
    short = model(input_features=frames[:, :, :11], **inputs)  # a shorter window has no silence
    assert short.encoder_last_hidden_state.shape == (ROWS, 6, 24)
