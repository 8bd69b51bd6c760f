"""`convert`: layouts, dtypes, shards, and a certificate that tells the truth."""

from __future__ import annotations

import json
import os
import shutil
import struct
import warnings
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianMTModel,
)
from typer.testing import CliRunner

import allformer as af
from allformer.checkpoint import convert as module
from allformer.checkpoint import shards
from allformer.checkpoint.convert import convert
from allformer.checkpoint.llama2c import read_llama2c
from allformer.checkpoint.run import save_run
from allformer.cli.main import app
from allformer.errors import CheckpointError
from allformer.families.original import transformer
from allformer.text.load import load_tokenizer
from allformer.text.tokenizer import train_tokenizer
from tests.loud import make_loud
from tests.parity.zoo import files_of


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gpt2")
    config = GPT2Config(vocab_size=50, n_embd=24, n_layer=2, n_head=3, n_positions=32)
    make_loud(GPT2LMHeadModel(config), tables=None).save_pretrained(path)
    (path / "generation_config.json").write_text('{"eos_token_id": 3}')
    return path


def test_the_same_layout_again_is_the_same_bytes_and_certified(gpt2, tmp_path):
    certificate = convert(gpt2, tmp_path / "out")
    before, after = files_of(gpt2), files_of(tmp_path / "out")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert certificate == json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert certificate["sound"] is True
    assert certificate["weights"] == {"identical": True, "largest_difference": 0.0}
    assert set(certificate["keys"]) == set(before), "every key has a fate"
    pairs = [tuple(row["between"]) for row in certificate["outputs"] if row["output"] == "logits"]
    assert pairs == [
        ("allformer on the source", "allformer on the target"),
        ("allformer on the target", "transformers on the target"),
        ("allformer on the source", "transformers on the source"),
    ]
    assert certificate["versions"]["torch"] == torch.__version__
    for side, path in (("source", gpt2), ("target", tmp_path / "out")):
        assert certificate[side]["files"].keys() == {"config.json", "model.safetensors"}
        assert certificate[side]["files"]["config.json"] == module.sha256(path / "config.json")
    assert (tmp_path / "out" / "generation_config.json").read_text() == '{"eos_token_id": 3}'


def test_what_says_how_images_are_prepared_is_saved_and_converted_byte_for_byte(gpt2, tmp_path):
    source, said = tmp_path / "in", b'{"size":  224}\r\n'
    shutil.copytree(gpt2, source)
    (source / "preprocessor_config.json").write_bytes(said)
    convert(source, tmp_path / "out", run=False)
    af.save(af.load(source), tmp_path / "saved")
    for folder in ("out", "saved"):
        assert (tmp_path / folder / "preprocessor_config.json").read_bytes() == said
    af.save(af.build(transformer(16, 2, 32, 1, vocab=60)), tmp_path / "saved", family="allformer")
    assert not (tmp_path / "saved" / "preprocessor_config.json").exists(), "of another model"
    (source / "preprocessor_config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"preprocessor_config.json is not UTF-8"):
        af.load(source)


def test_the_folders_of_sentence_transformers_go_along(gpt2, tmp_path):
    source = tmp_path / "in"
    shutil.copytree(gpt2, source)
    for folder in ("1_Pooling", "2_Dense"):
        (source / folder).mkdir()
        (source / folder / "config.json").write_text("{}")
    convert(source, tmp_path / "out", run=False)
    assert (tmp_path / "out" / "1_Pooling" / "config.json").is_file()
    assert (tmp_path / "out" / "2_Dense" / "config.json").is_file()


def test_our_own_layout_and_back_changes_no_bit(gpt2, tmp_path):
    convert(gpt2, tmp_path / "ours", family="allformer")
    assert "decoder.source.embedding.weight" in files_of(tmp_path / "ours")
    certificate = convert(tmp_path / "ours", tmp_path / "theirs")
    assert certificate["source"]["layout"] == "allformer"
    before, after = files_of(gpt2), files_of(tmp_path / "theirs")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_another_dtype_in_shards_says_how_far_it_rounds(gpt2, tmp_path):
    certificate = convert(gpt2, tmp_path / "out", dtype=torch.bfloat16, max_shard_bytes=10_000)
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(shards) > 2
    assert shards[0].startswith("model-00001-of-")
    assert {x.dtype for x in files_of(tmp_path / "out").values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert certificate["weights"]["identical"] is False
    assert 0 < certificate["weights"]["largest_difference"] < 0.05
    first, *rest = [row for row in certificate["outputs"] if row["output"] == "logits"]
    assert first["largest_difference"] > 1e-3, "rounding must show"
    assert all(row["largest_difference"] < 1e-4 for row in rest), "each is itself in both libraries"
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    assert theirs.dtype == torch.bfloat16


def test_a_wrong_result_is_not_certified(gpt2, tmp_path, monkeypatch):
    real = module.open_with_transformers

    def broken(path, architecture):
        model = real(path, architecture)
        with torch.no_grad():
            model.transformer.ln_f.bias += 0.5
        return model

    monkeypatch.setattr(module, "open_with_transformers", broken)
    assert convert(gpt2, tmp_path / "out")["sound"] is False
    done = CliRunner().invoke(app, ["convert", str(gpt2), str(tmp_path / "cli")])
    assert done.exit_code != 0
    assert "do not agree" in str(done.exception)


def test_large_models_are_converted_and_the_certificate_says_that_they_were_not_run(
    gpt2, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "LARGEST", 10)
    certificate = convert(gpt2, tmp_path / "out")
    assert certificate["outputs"] == []
    assert "more than 10" in certificate["outputs_not_compared"]
    assert certificate["weights"]["identical"] is True


def test_a_source_is_never_overwritten(gpt2):
    with pytest.raises(CheckpointError, match="is the source itself"):
        convert(gpt2, gpt2)


def test_a_family_that_cannot_say_it_is_refused_with_the_reason(gpt2, tmp_path):
    with pytest.raises(CheckpointError, match="llama: has no rotary positions"):
        convert(gpt2, tmp_path / "out", family="llama")
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_the_command_converts_and_shows_the_certificate(gpt2, tmp_path):
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["convert", str(gpt2), str(out), "--dtype", "fp16"])
    assert done.exit_code == 0, done.output
    assert "keys accounted for" in done.stdout
    done = CliRunner().invoke(
        app, ["convert", str(gpt2), str(tmp_path / "b"), "--max-shard-size", "9KB", "--json"]
    )
    assert json.loads(done.stdout)["sound"] is True
    assert len(list((tmp_path / "b").glob("model-*"))) > 2
    for options, says in (
        (["--dtype", "int8"], "--dtype int8 is not known; try fp32"),
        (["--max-shard-size", "much"], "is no size; try 5GB"),
    ):
        done = CliRunner().invoke(app, ["convert", str(gpt2), str(out), *options])
        assert says in str(done.exception)


# --- what we trained ------------------------------------------------------------------------------


@torch.no_grad()
def test_a_model_that_we_trained_opens_in_transformers_and_translates_the_same(tmp_path):
    lines = ["two dogs run", "a man is riding a bicycle", "the old man and the sea", "red"]
    tokenizer = train_tokenizer(lines, "char", vocab=60)
    config = transformer(32, 4, 48, 2, vocab=tokenizer.vocab_size, layout="halves")
    model = af.build(config, seed=3)
    model.encoder.source.embedding.weight.mul_(4)  # loud enough to say something
    save_run(tmp_path / "run", model, tokenizer)
    certificate = convert(tmp_path / "run", tmp_path / "out", family="marian")
    assert certificate["sound"] is True
    assert certificate["target"]["layout"] == "marian"
    theirs = MarianMTModel.from_pretrained(tmp_path / "out").eval()
    reader = AutoTokenizer.from_pretrained(tmp_path / "out")
    for beams in (1, 3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an untrained model seldom finds an end
            ours = af.translate(tmp_path / "run", lines, num_beams=beams, max_new_tokens=20)
        ids = theirs.generate(
            **reader(lines, return_tensors="pt", padding=True, return_token_type_ids=False),
            num_beams=beams, max_new_tokens=20, max_length=None,
        )  # fmt: skip
        assert reader.batch_decode(ids, skip_special_tokens=True) == ours
        assert len(set(ours)) > 1, "the model says one thing to everything"
    again = af.load(tmp_path / "out")
    assert again.provenance.generation["decoder_start_token_id"] == 2
    ids = again.generate(**reader(lines[:1], return_tensors="pt", return_token_type_ids=False))
    assert ids[0, 0] == 2


# --- llama2.c -------------------------------------------------------------------------------------


def meta_order(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Hugging Face's halves → Meta's neighbours, written another way than the library does it."""
    rows = weight.reshape(heads, -1, weight.shape[-1])
    half = rows.shape[1] // 2
    order = [place for i in range(half) for place in (i, half + i)]
    return rows[:, order].reshape_as(weight)


def llama2c(path: Path, tied: bool) -> LlamaForCausalLM:
    """A .bin as llama2.c's export writes it, from transformers' weights."""
    config = LlamaConfig(
        vocab_size=300, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=32,
        rms_norm_eps=1e-5, tie_word_embeddings=tied,
    )  # fmt: skip
    model = make_loud(LlamaForCausalLM(config), tables=None).eval()
    model.tie_weights()
    layers = model.model.layers

    def every(take):
        return torch.stack([take(layer) for layer in layers])

    tensors = [
        model.model.embed_tokens.weight,
        every(lambda x: x.input_layernorm.weight),
        every(lambda x: meta_order(x.self_attn.q_proj.weight, 6)),
        every(lambda x: meta_order(x.self_attn.k_proj.weight, 2)),
        every(lambda x: x.self_attn.v_proj.weight),
        every(lambda x: x.self_attn.o_proj.weight),
        every(lambda x: x.post_attention_layernorm.weight),
        every(lambda x: x.mlp.gate_proj.weight),
        every(lambda x: x.mlp.down_proj.weight),
        every(lambda x: x.mlp.up_proj.weight),
        model.model.norm.weight,
        torch.zeros(2, 32, 2),
    ] + ([] if tied else [model.lm_head.weight])
    header = struct.pack("<7i", 24, 40, 2, 6, 2, 300 if tied else -300, 32)
    path.write_bytes(header + b"".join(x.detach().numpy().tobytes() for x in tensors))
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_a_llama2c_file_gives_the_numbers_of_the_model_it_was_written_from(tmp_path, tied):
    theirs = llama2c(tmp_path / "x.bin", tied)
    ids = torch.randint(0, 300, (2, 20), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        read_llama2c(tmp_path / "x.bin")(ids).logits, theirs(ids).logits, rtol=1e-4, atol=1e-4
    )
    certificate = convert(tmp_path / "x.bin", tmp_path / "out")
    assert certificate["source"]["layout"] == "llama2.c"
    assert certificate["sound"] is True
    again = LlamaForCausalLM.from_pretrained(tmp_path / "out")
    assert all(
        torch.equal(a, b) for a, b in zip(again.parameters(), theirs.parameters(), strict=True)
    )


def test_a_llama2c_tokeniser_goes_along(tmp_path):
    llama2c(tmp_path / "x.bin", True)
    pieces = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{i:02X}>" for i in range(256))]
    pieces += [" ", "a", "b", " a", "ab", " ab", *(chr(0x4E00 + i) for i in range(35))]
    data = struct.pack("<i", 10)
    for i, piece in enumerate(pieces):
        raw = piece.encode()
        data += struct.pack("<fi", -float(i), len(raw)) + raw
    (tmp_path / "tok.bin").write_bytes(data)
    convert(tmp_path / "x.bin", tmp_path / "out", tokenizer=tmp_path / "tok.bin")
    ours, theirs = load_tokenizer(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "ab a 一é"
    ids = ours.encode(text)
    assert ids[:2] == [1, pieces.index(" ab")]
    assert ids == theirs(text)["input_ids"]
    assert ours.decode(ids) == text
    (tmp_path / "tok.bin").write_bytes(data[:-3])
    with pytest.raises(CheckpointError, match=r"tok\.bin is no tokeniser of llama2\.c with 300"):
        convert(tmp_path / "x.bin", tmp_path / "other", tokenizer=tmp_path / "tok.bin")


@pytest.mark.parametrize(
    ("cut", "says"),
    [(10, "only 10 bytes"), (1000, "bytes of weights, not the"), (None, "is no file of llama2")],
)
def test_a_damaged_llama2c_file_is_named(tmp_path, cut, says):
    llama2c(tmp_path / "x.bin", True)
    data = (tmp_path / "x.bin").read_bytes()
    (tmp_path / "x.bin").write_bytes(data[:cut] if cut else bytes(28) + data[28:])
    with pytest.raises(CheckpointError, match=says):
        read_llama2c(tmp_path / "x.bin")


def test_info_reads_a_hugging_face_directory(gpt2):
    done = CliRunner().invoke(app, ["info", str(gpt2), "--json"])
    assert done.exit_code == 0, done.output
    parameters = sum(p.numel() for p in af.load(gpt2).parameters())
    assert json.loads(done.stdout)["parameters"] == parameters


# --- over another checkpoint ----------------------------------------------------------------------

OLD = ("tokenizer.model", "certificate.json", "vocab.txt", "modules.json", "chat_template.jinja")


def occupied(path: Path, layers: int = 1) -> Path:
    """A directory with another checkpoint, and with files of somebody's own."""
    config = GPT2Config(vocab_size=50, n_embd=24, n_layer=layers, n_head=3, n_positions=32)
    make_loud(GPT2LMHeadModel(config)).save_pretrained(path)
    for name in (*OLD, "notes.txt", "README.md"):
        (path / name).write_text("old")
    return path


def names(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def test_saving_over_another_model_takes_its_tokeniser_and_certificate_away(gpt2, tmp_path):
    out = occupied(tmp_path / "out")
    af.save(af.load(gpt2), out)
    assert names(out) == {
        "config.json", "model.safetensors", "generation_config.json", "notes.txt", "README.md",
    }  # fmt: skip
    af.load(out)


def test_saving_a_model_again_keeps_its_tokeniser(gpt2, tmp_path):
    out = occupied(tmp_path / "out", layers=2)  # the shape of the other
    af.save(af.load(gpt2), out)
    assert {*OLD} - names(out) == {"certificate.json"}, "it was one of other weights"


def test_a_tokeniser_that_came_first_stays(gpt2, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "tokenizer.json").write_text("new")
    af.save(af.load(gpt2), out)
    assert (out / "tokenizer.json").read_text() == "new"


def test_converting_over_another_checkpoint_leaves_nothing_of_it(gpt2, tmp_path):
    source = tmp_path / "in"
    shutil.copytree(gpt2, source)
    (source / "merges.txt").write_text("of the source")
    out = occupied(tmp_path / "out", layers=2)
    certificate = convert(source, out, run=False)
    assert names(out) == {
        "config.json", "model.safetensors", "generation_config.json", "merges.txt",
        "certificate.json", "notes.txt", "README.md",
    }  # fmt: skip
    assert json.loads((out / "certificate.json").read_text()) == certificate


@pytest.mark.parametrize("at", ["weights", "config.json.part", "names"])
def test_an_interrupted_save_leaves_the_other_checkpoint_as_it_was(gpt2, tmp_path, monkeypatch, at):
    out = occupied(tmp_path / "out")
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    model = af.load(gpt2)

    def stop(*args):
        raise KeyboardInterrupt

    if at == "weights":
        monkeypatch.setattr(shards, "write_file", stop)
    elif at == "names":
        plain, calls = os.replace, iter(range(9))
        monkeypatch.setattr(
            shards.os, "replace", lambda a, b: stop() if next(calls) == 1 else plain(a, b)
        )
    else:
        write = Path.write_text
        monkeypatch.setattr(
            Path, "write_text", lambda p, *a, **k: stop() if p.name == at else write(p, *a, **k)
        )
    with pytest.raises(KeyboardInterrupt):
        af.save(model, out)
    monkeypatch.undo()
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_have_the_modes_that_the_user_asks_for(gpt2, tmp_path, umask):
    before = os.umask(umask)
    try:
        af.save(af.load(gpt2), tmp_path / "out")
    finally:
        os.umask(before)
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "out").iterdir()}
    assert modes == {0o666 & ~umask}


def test_a_path_that_is_a_file_is_refused_in_words(gpt2, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(CheckpointError, match="cannot take the weights"):
            af.save(af.load(gpt2), path)
