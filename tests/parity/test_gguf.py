"""GGUF files: the logits that transformers has from the same file, the ids of its tokenisers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import allformer as af
from allformer.checkpoint.gguf_blocks import BLOCKS
from allformer.config import LinearScaling, Llama3Scaling, Rotary
from allformer.core.quantised import Quantised, QuantisedApart, is_quantised
from allformer.core.relatives.rates import frequencies
from allformer.text.load import load_tokenizer
from tests import gguf_files
from tests.gguf_files import KINDS, MIXED, write_gguf
from tests.parity.torture import TEXTS

transformers = pytest.importorskip("transformers")


def reference(path: Path, kind: str = "AutoModelForCausalLM", **options: Any) -> Any:
    """What transformers makes of a file. It asks for accelerate, and on a CPU does without."""
    opened = getattr(transformers, kind)
    with pytest.MonkeyPatch.context() as patcher:
        patcher.setattr(transformers.modeling_utils, "is_accelerate_available", lambda: True)
        return opened.from_pretrained(path.parent, gguf_file=path.name, **options)


def ids_of(model: Any, rows: int = 2, width: int = 48) -> torch.Tensor:
    make = torch.Generator().manual_seed(0)
    return torch.randint(0, model.config.decoder.source.vocab, (rows, width), generator=make)


@torch.inference_mode()
def check_logits(ours: Any, theirs: Any) -> None:
    """In fp64; transformers' norms are in fp32 all the same."""
    ids = ids_of(ours)
    keep = torch.ones_like(ids)
    keep[0, :7] = 0
    got = ours.double()(input_ids=ids, attention_mask=keep).logits
    want = theirs.double()(input_ids=ids, attention_mask=keep).logits
    assert want.std() > 0.5  # loud
    torch.testing.assert_close(got[0, 7:], want[0, 7:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got[1], want[1], atol=1e-5, rtol=1e-5)


def check_blocks(seed: int = 0) -> None:
    """Every type, from random bytes: bit for bit what the reference multiplies out."""
    gguf, make = gguf_files.package(), np.random.default_rng(seed)
    for number, kind in BLOCKS.items():
        raw = make.integers(0, 256, (64, kind.bytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            want = gguf.dequantize(raw.copy(), gguf.GGMLQuantizationType(number))
        got = kind.read(torch.from_numpy(raw)).widen().numpy()
        np.testing.assert_array_equal(got, want, err_msg=kind.name)
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (kind.size, kind.bytes)


def test_blocks_are_multiplied_out_as_in_the_reference():
    check_blocks()


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", ["Q4_K", *(kind for kind in KINDS if kind != "Q4_K")])
def test_a_file_of_each_type_has_transformers_logits(kind, tmp_path):
    file = write_gguf(tmp_path / f"{kind}.gguf", kind)
    check_logits(af.load(file), reference(file))


def check_mixed(folder: Path) -> None:
    file = write_gguf(folder / "mixed.gguf", MIXED, seed=1)
    check_logits(af.load(file), reference(file))


def test_a_file_of_many_types_has_transformers_logits(tmp_path):
    check_mixed(tmp_path)


def check_kept(folder: Path, kind: Any = MIXED) -> None:
    """In their own bits, the matrices are those that would be loaded widened."""
    file = write_gguf(folder / "kept.gguf", kind, tied=True, bias=kind is MIXED)
    wide, kept = af.load(file), af.load(file, quantised=True)
    for name, layer in kept.named_modules():
        if isinstance(layer, Quantised | QuantisedApart) and ".each." not in name:
            plain = wide.get_submodule(name)
            assert torch.equal(layer.dense(torch.float32), plain.weight), name
            assert (layer.addend(torch.float32) is None) == (plain.bias is None)
    ids = ids_of(wide)
    with torch.inference_mode():
        want, got = wide.double()(input_ids=ids).logits, kept.double()(input_ids=ids).logits
    torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", ["Q4_1", *(x.name for x in BLOCKS.values() if x.name != "Q4_1")])
def test_a_file_kept_in_its_bits_is_the_same_model(kind, tmp_path):
    check_kept(tmp_path, kind)


def test_types_that_differ_within_one_product_are_kept_each_in_its_own(tmp_path):
    check_kept(tmp_path)
    kept: Any = af.load(tmp_path / "kept.gguf", quantised=True)
    layer = kept.decoder.layers[0]
    assert isinstance(layer.attention.qkv, QuantisedApart)
    bits = {name: (x.bits, x.group) for name, x in layer.attention.qkv.layers.items()}
    assert bits == {"q": (4, 32), "k": (4, 32), "v": (8, 16)}
    assert isinstance(layer.feed.gate, Quantised)
    assert layer.feed.gate.least is None


def test_plain_numbers_stay_plain_and_what_is_kept_takes_less_memory(tmp_path):
    def held(model: Any) -> int:
        return sum(x.nbytes for x in model.decoder.layers.state_dict().values())

    half = write_gguf(tmp_path / "half.gguf", "F16")
    assert not is_quantised(af.load(half, quantised=True))
    assert {p.dtype for p in af.load(half).parameters()} == {torch.float16, torch.float32}
    file = write_gguf(tmp_path / "q4_0.gguf", "Q4_0")
    wide, kept = af.load(file), af.load(file, quantised=True)
    assert held(kept) < 0.16 * held(wide)  # 4.5 bits for 32, and norms


def check_llama3(folder: Path) -> None:
    """LLaMA 3.1's files have the factors of its frequencies, and transformers does not read them:
    what is saved here has them in its config.json, and there it does."""
    scaling = Llama3Scaling(8.0)
    factors = frequencies(Rotary(5e4), 64) / frequencies(Rotary(5e4, scaling), 64)
    assert 1 < factors.unique().numel() < 32
    file = write_gguf(folder / "long.gguf", "F32", more={"rope_freqs.weight": factors.numpy()})
    model = af.load(file)
    assert model.config.decoder.relative == Rotary(5e4, scaling, 128)
    af.save(model, folder / "long")
    check_logits(model, transformers.AutoModelForCausalLM.from_pretrained(folder / "long"))


def test_the_factors_of_frequencies_become_the_scaling(tmp_path):
    check_llama3(tmp_path)


def test_linear_scaling_is_read(tmp_path):
    said = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    config = af.load(write_gguf(tmp_path / "a.gguf", said=said), device="meta").config
    assert config.decoder.relative.scaling == LinearScaling(4.0)
    older = {"llama.rope.scale_linear": 2.0}
    config = af.load(write_gguf(tmp_path / "b.gguf", said=older), device="meta").config
    assert config.decoder.relative.scaling == LinearScaling(2.0)


def test_biases_are_read_in_the_same_order_as_their_rows(tmp_path):
    """transformers leaves them out, so that ours is compared with what it says of the saved one."""
    file = write_gguf(tmp_path / "bias.gguf", "F32", bias=True)
    model: Any = af.load(file)
    q = gguf_files.tensors(dict.fromkeys(MIXED, "F32"), 700, tied=False, bias=True, seed=0)
    assert model.config.decoder.blocks[0].attention.bias
    rows = q["blk.0.attn_q.bias"][0].reshape(4, 32, 2).swapaxes(1, 2).reshape(-1)
    assert np.array_equal(model.decoder.layers[0].attention.qkv.part("q")[1].detach(), rows)
    af.save(model, tmp_path / "saved")
    check_logits(model, transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved"))


# ---------------------------------------------------------------------- tokenisers


@pytest.mark.parametrize("pre", ["gpt-2", "smaug-bpe"])  # which both know, and nothing more
def test_words_of_bytes_are_cut_as_transformers_cuts_them(pre, tmp_path):
    file = write_gguf(tmp_path / "words.gguf", words=gguf_files.gpt2_words(pre))
    ours, theirs = load_tokenizer(file), reference(file, "AutoTokenizer")
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text


def test_pieces_of_sentencepiece_are_joined_as_transformers_joins_them(tmp_path):
    file = write_gguf(tmp_path / "words.gguf", words=gguf_files.spm_words())
    ours, theirs = load_tokenizer(file), reference(file, "AutoTokenizer")
    for text in TEXTS:
        want = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, add_special_tokens=False) == want, text
        assert ours.encode(text) == [1, *want], text  # llama.cpp's: <s> unless the file says no


# ---------------------------------------------------------------------- the real one


@pytest.fixture(scope="module")
def smollm2() -> Any:
    """Opened once, as a task opens it."""
    return af.open_pipeline(gguf_files.smollm2(), device="cpu")


def test_the_real_smollm2_chats(smollm2):
    from allformer.tasks import generate

    ask = "What is the capital of France?"
    options = {"chat": True, "do_sample": False, "max_new_tokens": 12}
    assert generate(smollm2, ask, **options) == "The capital of France is Paris."


def test_the_real_smollm2_cuts_digits_apart(smollm2):
    """As its makers' tokenizer.json does; transformers, from this file, does not."""
    told = {
        "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
        "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
        "  multiple   spaces": [216, 2701, 256, 5600],
    }
    for text, ids in told.items():
        assert smollm2.tokenizer.encode(text) == ids
        assert smollm2.tokenizer.decode(ids) == text


@pytest.mark.slow
def test_the_real_smollm2_kept_in_its_bits_says_the_same(smollm2):
    kept: Any = af.load(gguf_files.smollm2(), quantised=True)
    assert is_quantised(kept)
    ids = ids_of(kept, rows=1)
    with torch.inference_mode():
        got, want = kept(input_ids=ids).logits, smollm2.model(input_ids=ids).logits
    torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)


@pytest.mark.slow
def test_the_real_smollm2_has_transformers_logits_and_its_chat_template(smollm2):
    file = gguf_files.smollm2()
    theirs = reference(file)
    words = reference(file, "AutoTokenizer")
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    text = smollm2.tokenizer.apply_chat_template(asked, add_generation_prompt=True)
    want = words.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    assert text == want
    ids = torch.tensor([smollm2.tokenizer.encode(text)])
    assert ids.tolist()[0] == words.encode(text)
    with torch.inference_mode():
        got, want = smollm2.model(input_ids=ids).logits, theirs(input_ids=ids).logits
    torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-4)
