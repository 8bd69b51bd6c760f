"""A trained model made longer: the same numbers within one window, and transformers opens it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers as hf
from typer.testing import CliRunner

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.checkpoint.lengthen import lengthen
from allformer.cli.main import app
from allformer.config import BlockSparse, Features, Full, GlobalWindow, Learned, LowRank, Window
from allformer.config.longer import longer, seen_by_all
from allformer.config.mixer_text import mixer_from_text
from allformer.errors import ConfigError
from allformer.text.load import load_tokenizer
from tests.loud import make_loud
from tests.parity import zoo
from tests.tiny import checkpoint  # noqa: F401  (a fixture)

ENCODER = {
    "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 40, "type_vocab_size": 2,
}  # fmt: skip
ROBERTA = {**ENCODER, "max_position_embeddings": 18, "pad_token_id": 1, "bos_token_id": 0}
BERT = {**ENCODER, "max_position_embeddings": 16, "pad_token_id": 0}
BART = {
    "vocab_size": 61, "d_model": 24, "encoder_layers": 2, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40, "max_position_embeddings": 16,
}  # fmt: skip
LLAMA = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
    "pad_token_id": 0,
}  # fmt: skip
GPT2 = {"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 16}

# transformers' class, its config, and the class that opens what becomes of it
ENCODERS = {
    "roberta words": (hf.RobertaForMaskedLM, hf.RobertaConfig(**ROBERTA), hf.LongformerForMaskedLM),
    "roberta": (hf.RobertaModel, hf.RobertaConfig(**ROBERTA), hf.LongformerModel),
    "roberta classes": (
        hf.RobertaForSequenceClassification, hf.RobertaConfig(**ROBERTA, num_labels=3),
        hf.LongformerForSequenceClassification,
    ),
    "roberta answers": (
        hf.RobertaForQuestionAnswering, hf.RobertaConfig(**ROBERTA),
        hf.LongformerForQuestionAnswering,
    ),
    "bert": (hf.BertModel, hf.BertConfig(**BERT), hf.LongformerModel),
    "bert words": (hf.BertForMaskedLM, hf.BertConfig(**BERT), hf.LongformerForMaskedLM),
    "bert classes": (
        hf.BertForSequenceClassification, hf.BertConfig(**BERT, num_labels=3),
        hf.LongformerForSequenceClassification,
    ),
    "bert tags": (
        hf.BertForTokenClassification, hf.BertConfig(**BERT, num_labels=3),
        hf.LongformerForTokenClassification,
    ),
}  # fmt: skip
OUTPUTS = ("logits", "last_hidden_state", "pooler_output", "start_logits", "end_logits")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a case, as transformers writes it."""
    made: dict[str, Path] = {}

    def get(name: str, kind: type, config) -> Path:
        if name not in made:
            torch.manual_seed(0)
            model = make_loud(kind(config).double(), tables=None)
            model.tie_weights()
            made[name] = zoo.on_disk(model, tmp_path_factory.mktemp(name.replace(" ", "-")))
        return made[name]

    return get


def ids(rows: int, width: int, seed: int = 0):
    return torch.randint(3, 61, (rows, width), generator=torch.Generator().manual_seed(seed))


def same(a, b, keep=None, near: float = 1e-9) -> None:
    seen = 0
    for name in OUTPUTS:
        x, y = getattr(a, name, None), getattr(b, name, None)
        if x is not None and y is not None:
            if keep is not None and x.shape[:2] == keep.shape:
                x, y = x[keep.bool()], y[keep.bool()]
            torch.testing.assert_close(
                x, y, rtol=near, atol=near, msg=lambda m, n=name: f"{n}: {m}"
            )
            seen += 1
    assert seen


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODERS)
def test_within_one_window_an_encoder_is_what_it_was(name, trained):
    kind, config, _ = ENCODERS[name]
    model = af.load(trained(name, kind, config))
    long = af.lengthen(model, 50, Window(15, 15))
    pad = config.pad_token_id
    words, keep = ids(3, 16), torch.arange(16) < torch.tensor([16, 9, 1])[:, None]
    inputs = {"input_ids": words.masked_fill(~keep, pad), "attention_mask": keep.long()}
    inputs["token_type_ids"] = (torch.arange(16) > 6).long().expand(3, -1)
    marks = torch.zeros(3, 16).long()
    marks[:, :2] = 1
    for more in ({}, {"global_attention_mask": marks}):
        if more or "answers" not in name:  # its question would be looked for
            same(long(**inputs, **more), model(**inputs), keep)
    assert long.config.encoder.blocks[1].attention.mixer == GlobalWindow(15, 15)


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODERS)
def test_transformers_opens_it_as_a_longformer(name, trained, tmp_path):
    """Every key is there, and on texts longer than windows and old positions it says the same."""
    kind, config, theirs = ENCODERS[name]
    long = af.lengthen(af.load(trained(name, kind, config)), 50, Window(4, 4))
    af.save(long, tmp_path)
    assert long.provenance.family == "longformer"
    assert json.loads((tmp_path / "config.json").read_text())["attention_window"] == [8, 8]
    peer, told = theirs.from_pretrained(tmp_path, dtype=torch.float64, output_loading_info=True)
    assert not told["missing_keys"] | told["unexpected_keys"] | told["mismatched_keys"]
    keep = torch.arange(50) < torch.tensor([50, 33])[:, None]
    words = ids(2, 50).masked_fill(~keep, config.pad_token_id)
    marks = (torch.arange(50) % 20 == 0).long().expand(2, -1) * keep
    inputs = {"input_ids": words, "attention_mask": keep.long(), "global_attention_mask": marks}
    same(long(**inputs), peer.eval()(**inputs), keep, near=1e-5)  # its softmax is in fp32
    same(long(**inputs), af.load(tmp_path)(**inputs), keep)


def test_positions_are_copied_in_turn_and_the_rows_of_padding_stay(trained):
    model = af.load(trained("roberta words", *ENCODERS["roberta words"][:2]))
    table = model.encoder.source.position.weight
    long = af.lengthen(model, 40, Window(8, 8)).encoder.source.position.weight
    assert long.shape == (42, 24)
    assert torch.equal(long[:18], table)
    assert torch.equal(long[18:34], table[2:])
    assert torch.equal(long[34:], table[2:10])


def test_a_berts_positions_are_counted_from_the_padding_on(trained):
    model = af.load(trained("bert", *ENCODERS["bert"][:2]))
    long = af.lengthen(model, 20, Window(8, 8))
    assert long.config.encoder.position == Learned(20, 1, "ids")
    table, old = long.encoder.source.position.weight, model.encoder.source.position.weight
    assert torch.equal(table[1:], torch.cat([old, old[:4]]))
    assert (table[0] == 0).all()


def test_global_projections_start_as_the_others_and_are_their_own(trained):
    model = af.load(trained("roberta", *ENCODERS["roberta"][:2]))
    long = af.lengthen(model, 64, Window(8, 8)).train()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    qkv = long.encoder.layers[0].attention.qkv
    for name in "qkv":
        for mine, hers in zip(qkv.part(name), qkv.part(f"{name}_global"), strict=True):
            assert torch.equal(mine, hers)
    marks = torch.zeros(1, 30).long()
    marks[:, 0] = 1
    out = long(ids(1, 30), global_attention_mask=marks).last_hidden_state
    out.square().sum().backward()
    assert qkv.weight.grad[-1].abs().sum() > 0
    with torch.no_grad():
        for parameter in long.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_half_precision_and_eval_mode_stay(trained):
    path = trained("roberta", *ENCODERS["roberta"][:2])
    long = af.lengthen(af.load(path, dtype=torch.bfloat16), 64, Window(8, 8))
    assert {p.dtype for p in long.parameters()} == {torch.bfloat16}
    assert not long.training
    again = af.lengthen(long, 128, Window(16, 16))  # longer still
    assert again.config.encoder.blocks[0].attention.mixer == GlobalWindow(16, 16)
    assert again.config.encoder.position.length == 128


# --- decoders, and encoders with one --------------------------------------------------------------


@torch.no_grad()
def test_a_bart_becomes_a_led(trained, tmp_path):
    path = trained("bart", hf.BartForConditionalGeneration, hf.BartConfig(**BART))
    model = af.load(path)
    long = af.lengthen(model, 60, Window(15, 15))  # whole windows: LED numbers its filling too
    words, target = ids(2, 16), ids(2, 12, 1)
    marks = torch.zeros(2, 16).long()
    marks[:, 0] = 1
    wanted = model(words, decoder_input_ids=target).logits
    for more in ({}, {"global_attention_mask": marks}):
        mine = long(words, decoder_input_ids=target, **more).logits
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-9)
    af.save(long, tmp_path)
    assert long.provenance.family == "led"
    peer = hf.LEDForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float64).eval()
    text = ids(2, 44, 2)
    theirs = peer(text, decoder_input_ids=target).logits
    mine = long(text, decoder_input_ids=target).logits
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_llama_with_a_window_is_a_mistral(trained, tmp_path):
    model = af.load(trained("llama", hf.LlamaForCausalLM, hf.LlamaConfig(**LLAMA)))
    long = af.lengthen(model, 96, Window(11, 11))
    assert {b.attention.mixer for b in long.config.decoder.blocks} == {Window(11)}
    assert long.config.decoder.relative.length == 96
    torch.testing.assert_close(long(ids(2, 12)).logits, model(ids(2, 12)).logits)
    af.save(long, tmp_path)
    peer = hf.MistralForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert (peer.config.sliding_window, peer.config.max_position_embeddings) == (12, 96)
    mine, theirs = (m(ids(2, 60)).logits for m in (long, peer))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_gpt2_looks_back_through_windows_in_our_own_layout(trained, tmp_path):
    model = af.load(trained("gpt2", hf.GPT2LMHeadModel, hf.GPT2Config(**GPT2)))
    long = af.lengthen(model, 40, Window(15))
    torch.testing.assert_close(long(ids(2, 16)).logits, model(ids(2, 16)).logits)
    table, old = (m.decoder.source.position.weight for m in (long, model))
    assert torch.equal(table, torch.cat([old, old, old[:8]]))
    assert long.provenance.family == ""
    af.save(long, tmp_path, family="allformer")
    torch.testing.assert_close(af.load(tmp_path)(ids(2, 40)).logits, long(ids(2, 40)).logits)
    wide = af.lengthen(model, 40, Full())
    assert wide.provenance.family == "gpt2"


def test_layers_that_have_windows_keep_them():
    long = longer(af.preset("gpt3-small"), 8192, Window(1023))
    assert [b.attention.mixer for b in long.decoder.blocks[:2]] == [Window(1023), Window(255)]
    assert seen_by_all(long) == 256
    assert seen_by_all(af.preset("gpt2")) is None


def test_a_t5_has_windows_without_global_tokens():
    long = longer(af.preset("t5-small"), 4096, Window(128, 128))
    assert long.encoder.blocks[0].attention.mixer == Window(128, 128)
    assert long.decoder == af.preset("t5-small").decoder


BIRDS = {
    "bert": (hf.BertModel, hf.BigBirdModel),
    "bert words": (hf.BertForMaskedLM, hf.BigBirdForMaskedLM),
    "bert tags": (hf.BertForTokenClassification, hf.BigBirdForTokenClassification),
}


@pytest.mark.parametrize("name", BIRDS)
def test_a_bert_that_looks_at_blocks_is_a_big_bird(name, trained, tmp_path):
    """In short rows what it was; transformers opens it, each layer with blocks of its own."""
    model = af.load(trained(*(name, *ENCODERS[name][:2])))
    long = af.lengthen(model, 64, BlockSparse(2, 1))
    assert [b.attention.mixer for b in long.config.encoder.blocks] == [
        BlockSparse(2, 1, seed=i, table=64) for i in range(2)
    ]
    inputs = ids(3, 14)
    with torch.no_grad():
        same(long(inputs), model(inputs))
    af.save(long, tmp_path)
    theirs = BIRDS[name][1].from_pretrained(tmp_path).eval()
    inputs = ids(2, 60)
    with torch.no_grad():
        same(long(inputs), theirs(inputs))


def test_features_have_no_weights_to_drop(trained):
    model = af.load(trained("bert", *ENCODERS["bert"][:2]))
    assert model.config.encoder.blocks[0].attention.dropout == 0.1
    long = af.lengthen(model, 64, Features("elu"))
    assert long.config.encoder.blocks[0].attention.dropout == 0
    assert long(ids(2, 60)).last_hidden_state.isfinite().all()


# --- what makes no sense --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "mixer", "message"),
    [
        (12, Window(4, 4), r"length=12 is less than the 16 tokens .* try 128"),
        (0, Window(4, 4), "length=0 must be a whole number"),
        (2.5, Window(4, 4), r"length=2\.5 must be a whole number"),
        (64, Window(63, 63), r"reaches over all of length=64.*mixer=Full\(\)"),
        (64, Window(0, 0), "see itself alone"),
        (64, Window(4, 4, 2), r"skips neighbours.*try Window\(4, 4\)"),
        (64, "window", "mixer='window' is not a mixer"),
        (64, LowRank(4, 32), r"mixer=LowRank\(rank=4, length=32.*takes 32 tokens.*length=64"),
        (64, LowRank(4, 64), "which the trained model does not have"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(length, mixer, message, trained):
    model = af.load(trained("roberta", *ENCODERS["roberta"][:2]))
    with pytest.raises(ConfigError, match=message):
        af.lengthen(model, length, mixer)


def test_an_adapter_is_not_lost_in_silence(trained):
    model = af.load(trained("roberta", *ENCODERS["roberta"][:2]))
    model.encoder.layers[0].feed.up.delta = lambda x, y: y
    with pytest.raises(ConfigError, match=r"encoder\.layers\.0\.feed\.up has a delta"):
        af.lengthen(model, 64, Window(8, 8))


@pytest.mark.parametrize(
    ("text", "mixer"),
    [
        ("window:512", Window(512, 512)),
        ("Window:512,0", Window(512, 0)),
        ("window:8,8,2", Window(8, 8, 2)),
        ("global-window:4,4", GlobalWindow(4, 4)),
        ("full", Full()),
        ("blocksparse:4,1", BlockSparse(4, 1)),
    ],
)
def test_a_mixer_is_told_in_a_word(text, mixer):
    assert mixer_from_text(text) == mixer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("windows:4", r"mixer 'windows:4' is not known; try window:512, or full"),
        ("window", "says too little; Window takes left, right, dilation"),
        ("window:1,2,3,4", "has 4 values; Window takes left, right, dilation"),
        ("window:wide", r"Window\.left='wide'"),
        ("window:-1", r"Window\.left=-1 must be a whole number of at least 0"),
    ],
)
def test_a_word_that_is_no_mixer_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        mixer_from_text(text)


# --- convert --------------------------------------------------------------------------------------


def test_convert_writes_it_with_a_certificate_and_a_tokeniser_that_knows(checkpoint, tmp_path):  # noqa: F811
    path, out = checkpoint("roberta-mlm"), tmp_path / "out"
    told = CliRunner().invoke(
        app, ["convert", str(path), str(out), "--length", "300", "--mixer", "window:8", "--json"]
    )
    assert told.exit_code == 0, told.output
    certificate = json.loads((out / "certificate.json").read_text())
    assert certificate["sound"] is True
    assert (certificate["source"]["layout"], certificate["target"]["layout"]) == (
        "roberta", "longformer",
    )  # fmt: skip
    pairs = {tuple(row["between"]) for row in certificate["outputs"]}
    assert ("allformer on the source", "allformer on the target") in pairs
    assert ("allformer on the target", "transformers on the target") in pairs
    assert ("allformer on the source", "transformers on the source") in pairs
    config = json.loads((out / "tokenizer_config.json").read_text())
    assert config.get("model_max_length", 300) == 300
    assert hf.AutoTokenizer.from_pretrained(out)("so long")["input_ids"]
    long = "a long text " * 60
    assert len(af.open_kit(out).tokenizer.encode(long)) > 100


def small_bert(kind, vocab, path):
    config = hf.BertConfig(
        vocab_size=vocab, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=32, max_position_embeddings=32,
    )  # fmt: skip
    kind(config).save_pretrained(path)


@pytest.mark.parametrize("mixer", [Window(8, 8), BlockSparse(2, 1)], ids=str)
@pytest.mark.parametrize("files", ["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize("said", [None, {"do_lower_case": True}])
def test_a_berts_tokeniser_stays_a_berts(mixer, files, said, tmp_path):
    """Old directories name no class: their family did, and the new one's is another."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "wrote", "faust", "##s"]
    source, out = tmp_path / "bert", tmp_path / "out"
    small_bert(hf.BertForMaskedLM, len(words), source)
    (source / "vocab.txt").write_text("\n".join(words) + "\n")
    if files == "tokenizer.json":
        hf.BertTokenizer(str(source / "vocab.txt")).save_pretrained(source)
    (source / "tokenizer_config.json").unlink(missing_ok=True)
    if said is not None:
        (source / "tokenizer_config.json").write_text(json.dumps(said))
    convert(source, out, length=64, mixer=mixer, run=False)
    text, ids = "who wrote fausts", [2, 5, 6, 7, 8, 3]
    assert load_tokenizer(source).encode(text) == ids
    assert load_tokenizer(out).encode(text) == ids
    theirs = hf.AutoTokenizer.from_pretrained(out)
    assert theirs(text)["input_ids"] == ids
    assert theirs.mask_token == "[MASK]"
    told = json.loads((out / "tokenizer_config.json").read_text())
    assert told == {**(said or {}), "tokenizer_class": "BertTokenizer"}


def test_a_lengthened_bert_finds_its_questions_by_the_tokenisers_separator(tmp_path):
    source, out = tmp_path / "bert", tmp_path / "out"
    small_bert(hf.BertForQuestionAnswering, 20, source)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
    (source / "vocab.txt").write_text("\n".join(words) + "\n")
    convert(source, out, length=64, mixer=Window(8, 8), run=False)
    ids = torch.tensor([[2, 7, 8, 3, 9, 10, 11, 3]])
    marks = torch.tensor([[1, 1, 1, 0, 0, 0, 0, 0]])
    longer = af.load(out).eval()
    asked, marked = longer(input_ids=ids), longer(input_ids=ids, global_attention_mask=marks)
    torch.testing.assert_close(asked.start_logits, marked.start_logits)
    assert json.loads((out / "config.json").read_text())["sep_token_id"] == 3
    unsaid = lengthen(af.load(source), 64, Window(8, 8)).eval()
    with pytest.raises(ConfigError, match=r"Tokens.eos_id=None.*global_attention_mask.*separator="):
        unsaid(input_ids=ids)
    assert unsaid(input_ids=ids, global_attention_mask=marks).start_logits.shape == (1, 8)
    said = lengthen(af.load(source), 64, Window(8, 8), separator=3).eval()
    torch.testing.assert_close(said(input_ids=ids).start_logits, asked.start_logits)


def test_what_is_no_model_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"model='roberta-base' is no model; try af.lengthen"):
        lengthen("roberta-base", 64)


@pytest.mark.parametrize(
    ("name", "mixer"),
    [
        ("bert-choice", Window(8, 8)),
        ("bert-mlm", Full()),
        ("led", Window(8, 8)),  # whose own windows are narrower: a text within both
        ("bert-mlm", BlockSparse(2, 1)),
    ],
    ids=str,
)
def test_other_heads_and_mixers_are_certified_too(name, mixer, checkpoint, tmp_path):  # noqa: F811
    certificate = convert(checkpoint(name), tmp_path / "out", length=128, mixer=mixer)
    assert certificate["sound"] is True


def test_what_is_another_function_gets_no_certificate(checkpoint, tmp_path):  # noqa: F811
    with pytest.raises(
        ConfigError, match=r"something else .* af\.lengthen\(model, length, mixer\)"
    ):
        convert(checkpoint("bert-mlm"), tmp_path / "out", length=64, mixer=Features("elu"))
    assert not (tmp_path / "out").exists()


def test_a_mixer_without_a_length_is_refused(checkpoint, tmp_path):  # noqa: F811
    with pytest.raises(ConfigError, match="belongs to a length"):
        convert(checkpoint("roberta-mlm"), tmp_path / "out", mixer=Window(4, 4))
