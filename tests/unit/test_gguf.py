"""GGUF files: their head, what is refused and how, directories and several files, the verbs."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import allformer as af
from allformer.checkpoint.gguf_file import generation_of, kinds_of
from allformer.cli.main import app
from allformer.errors import AllformerError, CheckpointError, DataError
from allformer.gguf_header import read_gguf_header
from allformer.tasks import generate
from allformer.text.gguf import tokenizer_of
from allformer.text.load import load_tokenizer
from tests import gguf_files
from tests.gguf_files import TEMPLATE, gpt2_words, write_gguf


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model in Q4_0, alone in its directory; not to be changed."""
    return write_gguf(tmp_path_factory.mktemp("one") / "model.gguf", "Q4_0")


def metadata(**said: Any) -> dict[str, Any]:
    """Of a tokeniser, with some of it said otherwise."""
    words = {f"tokenizer.{name}": value for name, value in gpt2_words().items()}
    return words | {f"tokenizer.ggml.{name}": value for name, value in said.items()}


# ---------------------------------------------------------------------- the head


def test_the_head_is_what_the_gguf_package_reads(file):
    ours, theirs = read_gguf_header(file), gguf_files.package().GGUFReader(file)
    for tensor in theirs.tensors:
        entry = ours.tensors[tensor.name]
        assert (entry.offset, entry.kind) == (tensor.data_offset, tensor.tensor_type)
        assert list(entry.shape) == tensor.shape.tolist()[::-1]
    for name, said in theirs.fields.items():
        if not name.startswith("GGUF."):
            want = said.contents()
            assert ours.metadata[name] == (pytest.approx(want) if type(want) is float else want)
    assert ours.metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-5  # not 9.99999975e-06


@pytest.mark.parametrize("alignment", [32, 256])
def test_tensors_are_found_behind_any_alignment(alignment, tmp_path):
    said = {"general.alignment": alignment}
    plain = af.load(write_gguf(tmp_path / "a.gguf", "F32"))
    model = af.load(write_gguf(tmp_path / "b.gguf", "F32", said=said))
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])


def test_a_file_that_is_cut_off_says_so_wherever_it_is_cut(file, tmp_path):
    whole = file.read_bytes()
    make = Random(0)
    cuts = [0, 3, 20, *(make.randrange(len(whole)) for _ in range(25)), len(whole) - 40]
    for cut in cuts:
        short = tmp_path / "short.gguf"
        short.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError, match=r"cut off|no GGUF"):
            af.load(short)


def test_a_damaged_head_is_refused_by_one_of_our_errors(file, tmp_path, thorough):
    """Soon and in little memory: no count is believed that the file has no room for."""
    whole, make = file.read_bytes(), Random(0)
    head = min(entry.offset for entry in read_gguf_header(file).tensors.values())
    for _ in range(2000 if thorough else 60):
        damaged = bytearray(whole)
        for _ in range(make.choice((1, 4, 30))):
            damaged[make.randrange(head)] = make.randrange(256)
        (tmp_path / "damaged.gguf").write_bytes(damaged)
        for opened in (lambda path: af.load(path, device="meta"), load_tokenizer):
            with contextlib.suppress(AllformerError):
                opened(tmp_path / "damaged.gguf")


@pytest.mark.parametrize(
    ("at", "data", "said"),
    [
        (0, b"GGML", "is no GGUF file"),
        (0, b"version https", "Git LFS pointer"),
        (4, struct.pack("<I", 1), "GGUF of version 1"),
        (4, struct.pack(">I", 3), "other order of bytes"),
        (8, struct.pack("<Q", 1 << 60), "damaged"),
        (16, struct.pack("<Q", 1 << 60), "damaged"),
    ],
)
def test_a_head_that_is_none_of_ours_is_refused(at, data, said, file, tmp_path):
    whole = bytearray(file.read_bytes())
    whole[at : at + len(data)] = data
    (tmp_path / "odd.gguf").write_bytes(whole)
    with pytest.raises(CheckpointError, match=said):
        af.load(tmp_path / "odd.gguf")


# ---------------------------------------------------------------------- what is refused


def test_another_architecture_is_refused_with_a_way_out(tmp_path):
    file = write_gguf(tmp_path / "phi.gguf", architecture="phi3")
    with pytest.raises(CheckpointError, match=r"architecture='phi3', and only 'llama'.*original"):
        af.load(file)


def test_a_type_that_is_not_read_is_named_with_those_that_are(file, tmp_path):
    header = read_gguf_header(file)
    name = "blk.0.ffn_up.weight"
    raw = bytearray(file.read_bytes())
    at = raw.index(name.encode()) + len(name) + 4 + 2 * 8
    assert struct.unpack_from("<I", raw, at)[0] == header.tensors[name].kind
    for kind, called in ((23, "IQ4_XS"), (99, "type 99")):
        struct.pack_into("<I", raw, at, kind)
        (tmp_path / "iq.gguf").write_bytes(raw)
        with pytest.raises(CheckpointError, match=f"{name} in {called}.*Q4_K.*such as"):
            af.load(tmp_path / "iq.gguf")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"llama.expert_count": 8, "llama.expert_used_count": 2}, "expert_count=8 .and"),
        ({"llama.attention.sliding_window": 64}, r"ignore=\['llama.attention.sliding_window'\]"),
        ({"llama.rope.dimension_count": 32}, "rope.dimension_count=32 beside heads of 64"),
        ({"llama.rope.scaling.type": "yarn"}, "type='yarn', which is not supported"),
        ({"llama.block_count": 3}, "block_count=3, but has no tensors"),
        ({"llama.embedding_length": None}, "lacks llama.embedding_length"),
        ({"llama.embedding_length": "wide"}, "must be a whole number"),
        ({"llama.embedding_length": 512, "llama.attention.head_count": 8}, "does not fit"),
        ({"llama.feed_forward_length": [512, 256]}, "must be a whole number"),
    ],
)
def test_metadata_that_mean_another_model_are_refused(said, message, tmp_path):
    file = write_gguf(tmp_path / "odd.gguf", said=said)
    with pytest.raises(CheckpointError, match=message) as error:
        af.load(file, device="meta")
    assert str(file) in str(error.value)


def test_what_is_ignored_on_purpose_is_gone_on_without(tmp_path):
    file = write_gguf(tmp_path / "odd.gguf", said={"llama.attention.sliding_window": 64})
    af.load(file, device="meta", ignore=["llama.attention.sliding_window"])


def test_factors_of_another_scaling_are_refused(tmp_path):
    odd = np.linspace(1, 8, 32, dtype=np.float32)
    file = write_gguf(tmp_path / "odd.gguf", more={"rope_freqs.weight": odd})
    with pytest.raises(CheckpointError, match="are not those of LLaMA"):
        af.load(file)


def test_tensors_that_nobody_knows_are_named(tmp_path):
    file = write_gguf(tmp_path / "odd.gguf", more={"blk.0.attn_sinks.weight": np.ones(4, "f4")})
    with pytest.raises(CheckpointError, match=r"unexpected: blk\.0\.attn_sinks\.weight"):
        af.load(file)


def test_only_a_gguf_file_is_kept_in_its_bits(tmp_path, file):
    af.save(af.load(file), tmp_path)
    with pytest.raises(CheckpointError, match="quantised=True keeps the bits of a GGUF file"):
        af.load(tmp_path, quantised=True)


# ---------------------------------------------------------------------- where it lies


def test_a_directory_with_one_file_is_the_checkpoint(file):
    model, tokenizer = af.load(file.parent), load_tokenizer(file.parent)
    assert torch.equal(model.decoder.final_norm.weight, af.load(file).decoder.final_norm.weight)
    assert tokenizer.encode("Hello") == load_tokenizer(file).encode("Hello")
    assert af.open_pipeline(file.parent, device="cpu").architecture == "LlamaForCausalLM"


def test_a_directory_with_several_models_asks_which(tmp_path):
    for name in ("a", "b"):
        write_gguf(tmp_path / f"{name}.gguf")
    with pytest.raises(CheckpointError, match=r"several models: a.gguf, b.gguf; give the file"):
        af.load(tmp_path)


def test_a_directory_with_other_weights_is_opened_as_it_was(file, tmp_path):
    af.save(af.load(file), tmp_path, dtype=torch.bfloat16)
    (tmp_path / "x.gguf").write_bytes(file.read_bytes())
    assert af.load(tmp_path).decoder.final_norm.weight.dtype == torch.bfloat16


def test_a_model_in_several_files_is_one(tmp_path):
    whole = af.load(write_gguf(tmp_path / "whole.gguf", "F16"))
    (tmp_path / "cut").mkdir()
    write_gguf(tmp_path / "cut" / "model.gguf", "F16", split=8)
    parts = sorted((tmp_path / "cut").glob("*.gguf"))
    assert len(parts) == 3
    for path in (parts[0], tmp_path / "cut"):
        for name, weight in af.load(path).state_dict().items():
            assert torch.equal(weight, whole.state_dict()[name])
    assert load_tokenizer(tmp_path / "cut").encode("a") == load_tokenizer(parts[0]).encode("a")
    (tmp_path / "fewer").mkdir()
    for part in parts[::2]:
        shutil.copyfile(part, tmp_path / "fewer" / part.name)
    with pytest.raises(CheckpointError, match=f"one of 3 files, of which {parts[1].name}"):
        af.load(tmp_path / "fewer")


def test_the_bare_model_leaves_the_output_matrix_behind(file):
    bare: Any = af.load(file, architecture="LlamaModel")
    assert bare.config.head is None
    ids = torch.arange(9)[None]
    whole = af.load(file)(input_ids=ids)
    assert torch.equal(bare(input_ids=ids).last_hidden_state, whole.last_hidden_state)
    with pytest.raises(CheckpointError, match="try LlamaForCausalLM or LlamaModel"):
        af.load(file, architecture="LlamaForSequenceClassification")


# ---------------------------------------------------------------------- tokenisers


def check_words() -> None:
    """Marks, digits and whole words, in one glance."""
    words = metadata(pre="llama-bpe")
    words["tokenizer.ggml.tokens"] = [*words["tokenizer.ggml.tokens"], "xyzzy"]
    words["tokenizer.ggml.token_type"] = [*words["tokenizer.ggml.token_type"], 1]
    known = len(words["tokenizer.ggml.tokens"]) - 1
    assert tokenizer_of(words).encode("xyzzy") == [1, known]
    digits = tokenizer_of(metadata(pre="smollm"))
    assert known not in digits.encode("xyzzy")
    assert digits.tokens(digits.encode("<|turn|>1234")) == ["<|turn|>", "1", "2", "3", "4"]


def test_marks_digits_and_whole_words_are_cut_as_the_file_says():
    check_words()


def test_special_tokens_stand_as_they_are_and_the_template_is_the_files():
    tokenizer = tokenizer_of(metadata())
    assert tokenizer.special_ids == {"bos": 1, "eos": 0, "pad": 0}
    assert tokenizer.encode("<|start|>a<|turn|>")[0::2] == [1, 2]
    asked = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(asked, add_generation_prompt=True)
    assert text == "<|start|><|start|>user\nHi<|turn|>\n<|start|>assistant\n"
    assert tokenizer.settings.chat_template == TEMPLATE
    assert tokenizer.padding_side == "left"


def test_further_templates_go_by_their_names():
    told = metadata() | {"tokenizer.chat_template.tool_use": "tools"}
    assert tokenizer_of(told).settings.chat_template == {"default": TEMPLATE, "tool_use": "tools"}


def test_the_first_token_is_put_before_a_text_where_the_file_says_so():
    assert tokenizer_of(metadata()).encode("a")[0] != 1
    assert tokenizer_of(metadata(add_bos_token=True)).encode("a")[0] == 1
    assert tokenizer_of(metadata(pre="llama-bpe")).encode("a")[0] == 1
    assert tokenizer_of(metadata(pre="llama-bpe", add_bos_token=False)).encode("a")[0] != 1
    assert tokenizer_of(metadata(add_eos_token=True)).encode("a")[-1] == 0


@pytest.mark.parametrize(
    ("pre", "parts"),
    [
        ("gpt-2", ["ab", "Ġ1234", "'s", "ĠCD", "Ġ", "Ġ!"]),
        ("smollm", ["ab", "Ġ", "1", "2", "3", "4", "'s", "ĠCD", "Ġ", "Ġ!"]),
        ("llama-bpe", ["ab", "Ġ", "123", "4", "'s", "ĠCD", "Ġ", "Ġ!"]),
        ("tekken", ["ab", "Ġ", "1", "2", "3", "4", "'s", "ĠCD", "Ġ", "Ġ!"]),
    ],
)
def test_texts_are_cut_by_the_steps_that_the_file_names(pre, parts):
    steps = tokenizer_of(metadata(pre=pre))._inner.pre_tokenizer
    assert [part for part, _ in steps.pre_tokenize_str("ab 1234's CD  !")] == parts


def test_old_files_that_do_not_say_how_they_cut_are_warned_of():
    with pytest.warns(UserWarning, match="GPT-2's way is taken"):
        tokenizer_of(metadata(pre="default"))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"model": "rwkv"}, "model='rwkv' is no kind.*gpt2, llama: give the tokeniser of"),
        ({"pre": "deepseek-llm"}, "pre='deepseek-llm' names steps.*smollm.*original"),
        ({"tokens": None}, "no tokenizer.ggml.tokens, so that it has no tokeniser"),
        ({"token_type": [1, 1]}, "2 kinds of tokens, which must be as many"),
        ({"merges": ["zz qq"]}, "'zz qq', which joins no two tokens"),
        ({"bos_token_id": 10_000}, "bos_token_id=10000 is none of the"),
        ({"add_bos_token": "yes"}, "must be true or false"),
    ],
)
def test_a_vocabulary_that_cannot_be_read_is_refused(said, message):
    with pytest.raises(DataError, match=message):
        tokenizer_of(metadata(**said))


def test_a_turns_end_ends_the_answer_too():
    assert generation_of(metadata()) == {
        "bos_token_id": 1, "pad_token_id": 0, "eos_token_id": [0, 2],
    }  # fmt: skip
    assert generation_of(metadata(eot_token_id=None))["eos_token_id"] == 0  # type: ignore[index]
    assert generation_of({}) is None


# ---------------------------------------------------------------------- the verbs


def test_a_converted_file_is_the_same_model_with_its_words(file, tmp_path):
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["convert", str(file), str(out), "--json", "--no-run"])
    assert done.exit_code == 0, done.output
    certificate = json.loads(done.stdout.splitlines()[-1])
    assert certificate["sound"]
    assert certificate["weights"]["identical"]
    assert certificate["source"]["layout"] == "gguf"
    assert certificate["keys"]["blk.1.attn_k.weight"] == "decoder.layers.1.attention.qkv.weight"
    ours, theirs = load_tokenizer(file), load_tokenizer(tmp_path / "out")
    assert theirs.encode("Hello 12 <|turn|>") == ours.encode("Hello 12 <|turn|>")
    assert theirs.settings.chat_template == TEMPLATE
    said = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert said["eos_token_id"] == [0, 2]


def test_a_directory_with_one_file_is_converted(file, tmp_path):
    arguments = ["convert", str(file.parent), str(tmp_path / "out"), "--no-run", "--dtype", "bf16"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert af.load(tmp_path / "out").decoder.final_norm.weight.dtype == torch.bfloat16


def test_info_tells_what_a_file_holds(file):
    done = CliRunner().invoke(app, ["info", str(file)])
    assert done.exit_code == 0, done.output
    assert "Q4_0" in done.output
    assert "4.5" in done.output
    for where in (file, file.parent):
        told = json.loads(CliRunner().invoke(app, ["info", str(where), "--json"]).stdout)
        assert told["file"] == kinds_of(file)
        assert told["file"]["F32"]["tensors"] == 5
    assert told["parameters"] == sum(held["numbers"] for held in told["file"].values())


def test_a_file_generates_widened_and_in_its_own_bits(tmp_path):
    file = write_gguf(tmp_path / "q8.gguf", "Q8_0")
    runner = CliRunner()
    arguments = ["generate", str(file), "Hello", "--max-new-tokens", "4", "--device", "cpu"]
    told = [
        runner.invoke(app, [*arguments, *more]).stdout for more in ([], ["--dtype", "quantised"])
    ]
    assert told[0] == told[1]
    assert told[0].strip()
    pipeline = af.open_pipeline(file, device="cpu", quantised=True)
    assert generate(pipeline, "Hello", max_new_tokens=4) == told[0].rstrip("\n")
