"""generate, translate and summarise write what transformers' generate writes."""

from __future__ import annotations

import json

import pytest
import torch

import allformer as af
from allformer.checkpoint.run import save_run
from allformer.core.model import build
from allformer.errors import ConfigError, LengthError, TaskError
from allformer.families.original import transformer
from allformer.tasks import Stream, generate, open_kit, summarise, translate
from allformer.text.tokenizer import train_tokenizer
from tests import tiny
from tests.tiny import checkpoint  # noqa: F401

hf = pytest.importorskip("transformers")
PROMPTS = ["The capital of France", "Goethe", "A man is eating food. Two women are", "你好"]


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()


class Theirs:
    """transformers' side, one text at a time."""

    def __init__(self, path, kind=hf.AutoModelForSeq2SeqLM) -> None:
        self.model = kind.from_pretrained(path).eval()
        self.tokenizer = hf.AutoTokenizer.from_pretrained(path)

    def __call__(self, text: str, **options) -> str:
        inputs = self.tokenizer(text, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        with torch.no_grad():
            ids = self.model.generate(**inputs, **options)[0]
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def test_a_decoder_goes_on_from_prompts_of_any_length(checkpoint):  # noqa: F811
    path = checkpoint("gpt2")
    theirs = Theirs(path, hf.AutoModelForCausalLM)
    found = generate(path, PROMPTS, max_new_tokens=12)
    for prompt, ours in zip(PROMPTS, found, strict=True):
        assert prompt + ours == theirs(prompt, max_new_tokens=12, pad_token_id=0)
    assert generate(path, PROMPTS[0], max_new_tokens=12) == found[0]
    assert len(set(found)) == 4


def test_the_space_between_prompt_and_text_is_kept(checkpoint):  # noqa: F811
    path = checkpoint("llama")  # its tokens hold the space before a word
    theirs = Theirs(path, hf.AutoModelForCausalLM)
    kept = 0
    for prompt in ("The capital of", "Goethe wrote"):
        ours = generate(path, prompt, max_new_tokens=8)
        assert prompt + ours == theirs(prompt, max_new_tokens=8)
        kept += ours.startswith(" ")
    assert kept


def test_an_empty_prompt_begins_at_the_beginning(checkpoint):  # noqa: F811
    kit = open_kit(checkpoint("gpt2"))
    found = generate(kit, ["Goethe", "", "A man"], max_new_tokens=5)
    assert found[1] == generate(kit, "", max_new_tokens=5) != ""
    assert found[0] == generate(kit, "Goethe", max_new_tokens=5)


def test_several_texts_of_one_prompt_come_as_a_list(checkpoint):  # noqa: F811
    kit = open_kit(checkpoint("gpt2"))
    options = {"do_sample": True, "max_new_tokens": 6, "num_return_sequences": 3}
    found = generate(kit, ["Goethe", "A man"], seed=1, **options)
    assert [len(texts) for texts in found] == [3, 3]
    assert found == generate(kit, ["Goethe", "A man"], seed=1, **options)
    assert found != generate(kit, ["Goethe", "A man"], seed=2, **options)


def test_the_texts_of_a_prompt_are_its_own(checkpoint):  # noqa: F811
    kit = open_kit(checkpoint("gpt2"))
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 6}
    found = generate(kit, PROMPTS, **options)
    assert found == [generate(kit, prompt, **options) for prompt in PROMPTS]
    assert len({tuple(texts) for texts in found}) == 4
    assert found == generate(kit, PROMPTS, **options, return_dict_in_generate=True)


def test_without_a_length_the_model_writes_until_its_positions_end(checkpoint):  # noqa: F811
    kit = open_kit(checkpoint("gpt2"))
    written = generate(kit, "Goethe", suppress_tokens=[0])
    # 64 positions; the last token is said, not read
    full = kit.tokenizer.encode("Goethe" + written)
    assert len(kit.tokenizer.encode("Goethe")) + 40 < len(full)
    with pytest.raises(LengthError, match=r"prompt|text 1 .* has 200 tokens.*takes 64; shorten it"):
        generate(kit, "x " * 100)


def test_a_chat_goes_through_the_checkpoints_template(checkpoint):  # noqa: F811
    kit = open_kit(checkpoint("llama"))
    options = {"max_new_tokens": 6}
    whole = "<system>be kind<user>who is he<assistant>"  # <s> comes by itself
    want = generate(kit, whole, **options)
    assert generate(kit, "who is he", chat=True, system="be kind", **options) == want
    talk = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "who is he"}]
    assert generate(kit, [talk], chat=True, **options) == [want]
    with pytest.raises(ConfigError, match="chat template"):
        generate(checkpoint("gpt2"), "x", chat=True)
    with pytest.raises(ConfigError, match="chat=True"):
        generate(kit, "x", system="be kind")


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_a_stream_shows_the_text_bit_by_bit(checkpoint, name):  # noqa: F811
    kit = open_kit(checkpoint(name))
    bits: list[str] = []
    stream = Stream(kit.tokenizer, bits.append)
    length = {"max_new_tokens": 50, "min_new_tokens": 40}
    written = generate(kit, "Goethe wrote", streamer=stream, **length)
    assert "".join(bits) == written
    assert len(bits) > 10


@pytest.mark.filterwarnings("ignore:no end was reached")
def test_translate_honours_what_t5_says_of_the_pair(checkpoint):  # noqa: F811
    path = checkpoint("t5")
    theirs = Theirs(path)
    texts = [*tiny.LINES[:3], "", "Goethe"]
    for (source, target), key in {
        ("en", "de"): "translation_en_to_de",
        ("English", "French"): "translation_en_to_fr",
    }.items():
        said = dict(tiny.TASKS[key])
        prefix = said.pop("prefix")
        said["min_length"] = 8  # else these weights say nothing
        found = translate(path, texts, source=source, target=target, min_length=8)
        wanted = [theirs(prefix + text, **said) if text else "" for text in texts]
        assert found == wanted
        assert len(set(found)) == 5
    with pytest.raises(ConfigError, match="translates en to de, en to fr; choose one"):
        translate(path, "x")
    with pytest.raises(ConfigError, match="source='de'"):
        translate(path, "x", source="de", target="en")


@pytest.mark.filterwarnings("ignore:no end was reached")
def test_a_t5_that_says_nothing_gets_the_papers_words(checkpoint):  # noqa: F811
    path = checkpoint("t5-plain")
    theirs = Theirs(path)
    options = {"min_length": 6, "max_length": 12}
    for given, prefix in {
        ("en", "de"): "translate English to German: ",
        ("German", "Romanian"): "translate German to Romanian: ",
    }.items():
        ours = translate(path, "Goethe wrote", source=given[0], target=given[1], **options)
        assert ours == theirs(prefix + "Goethe wrote", **options)
    assert translate(path, "Goethe", prefix="p ", **options) == theirs("p Goethe", **options)
    assert translate(path, "Goethe", **options) == theirs("Goethe", **options)
    assert summarise(path, "Goethe", **options) == theirs("summarize: Goethe", **options)
    with pytest.raises(ConfigError, match="language 'zh' is none that this family"):
        translate(path, "x", source="en", target="zh")


def test_summarise_honours_what_the_checkpoint_says_of_the_task(checkpoint):  # noqa: F811
    path = checkpoint("t5")
    theirs = Theirs(path)
    said = dict(tiny.SUMMARY)
    prefix = said.pop("prefix")
    with pytest.warns(UserWarning, match="no end was reached in . of 4 texts"):
        found = summarise(path, tiny.LINES[:4])
    assert found == [theirs(prefix + line, **said) for line in tiny.LINES[:4]]
    with pytest.warns(UserWarning, match="no end"):
        ours = summarise(path, tiny.LINES[0], num_beams=1, max_length=9)
    short = {"max_length": 9, "min_length": 5, "no_repeat_ngram_size": 3}
    assert ours == theirs(prefix + tiny.LINES[0], **short)


@pytest.mark.parametrize("name", ["bart", "marian"])
def test_a_checkpoint_of_one_way_translates_as_it_is(checkpoint, name):  # noqa: F811
    path = checkpoint(name)
    options = {"max_length": 12, "num_beams": 3}
    if name == "marian":  # transformers' tokeniser needs the sentencepiece package
        kit = open_kit(path)
        model = hf.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
        wanted = []
        for line in tiny.LINES[:4]:
            ids = torch.tensor([kit.tokenizer.encode(line)])
            wanted.append(kit.tokenizer.target.decode(model.generate(ids, **options)[0].tolist()))
    else:
        theirs = Theirs(path)
        wanted = [theirs(line, **options) for line in tiny.LINES[:4]]
    assert translate(path, tiny.LINES[:4], **options) == wanted
    with pytest.raises(ConfigError, match="told no language"):
        translate(path, "x", source="en", target="de")


def test_marians_output_is_spelt_by_its_own_table(checkpoint, tmp_path):  # noqa: F811
    path = tiny.make(tmp_path / "marian", "marian")
    table = json.loads((path / "vocab.json").read_text(encoding="utf-8"))
    words = [piece for piece in table if piece.startswith("▁")]
    turned = dict(zip(words, words[1:] + words[:1], strict=True))  # each id another word
    other = {turned.get(piece, piece): i for piece, i in table.items()}
    text = json.dumps(other, ensure_ascii=False)
    (path / "target_vocab.json").write_text(text, encoding="utf-8")
    tiny.edit(path / "tokenizer_config.json", separate_vocabs=True)
    plain = translate(checkpoint("marian"), tiny.LINES[:3], max_length=12)
    want = [" ".join(turned["▁" + word][1:] for word in line.split()) for line in plain]
    assert all(word in {piece[1:] for piece in words} for line in plain for word in line.split())
    assert translate(path, tiny.LINES[:3], max_length=12) == want != plain


def test_a_multilingual_marian_is_told_the_language_by_a_token(checkpoint):  # noqa: F811
    kit = open_kit(checkpoint("marian"))
    told = translate(kit, tiny.LINES, target="fra", max_length=20)
    assert told == translate(kit, [f">>fra<< {line}" for line in tiny.LINES], max_length=20)
    assert told != translate(kit, tiny.LINES, max_length=20)


@pytest.mark.parametrize("kind", ["", "50"])
def test_mbart_is_told_both_languages_by_codes(checkpoint, kind):  # noqa: F811
    path = checkpoint(f"mbart-{kind}" if kind else "mbart")
    model = hf.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(path)
    first = "forced_bos_token_id" if kind else "decoder_start_token_id"
    for source, target in (("en_XX", "de_DE"), ("de_DE", "en_XX")):
        tokenizer.src_lang = source
        inputs = tokenizer("Goethe wrote Faust", return_tensors="pt")
        code = tokenizer.convert_tokens_to_ids(target)
        options = {"max_length": 12, "min_length": 6, "no_repeat_ngram_size": 1}
        ids = model.generate(**inputs, **options, **{first: code})[0]
        wanted = tokenizer.decode(ids, skip_special_tokens=True)
        ours = translate(path, "Goethe wrote Faust", source=source, target=target, **options)
        assert ours == wanted != ""
        short = {"source": source[:2], "target": target[:2]}
        assert translate(path, "Goethe wrote Faust", **short, **options) == wanted
    with pytest.raises(ConfigError, match=r"language 'xx' is not in the vocabulary; try .*de_DE"):
        translate(path, "x", target="xx")
    with pytest.raises(ConfigError, match="target=None"):
        translate(path, "x")


def test_a_long_text_is_refused_or_cut(checkpoint):  # noqa: F811
    kit = open_kit(checkpoint("bart"))
    with pytest.raises(LengthError, match=r"text 2 .* takes 64; split it"):
        summarise(kit, ["short", "long " * 100], max_length=8)
    with pytest.warns(UserWarning, match="1 text was cut to 64 tokens"):
        summarise(kit, "long " * 100, truncate=True, max_length=8)


@pytest.mark.parametrize(
    ("name", "call", "words"),
    [
        ("gpt2", translate, ["translate needs", "GPT2LMHeadModel", "it can generate"]),
        ("bert-mlm", generate, ["generate needs", "BertForMaskedLM", "`allformer fill`"]),
        ("bert-class", summarise, ["summarise needs", "`allformer classify`"]),
    ],
)
def test_a_checkpoint_that_cannot_write_says_what_it_can(checkpoint, name, call, words):  # noqa: F811
    with pytest.raises(TaskError) as caught:
        call(checkpoint(name), "x")
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_run_of_ours_is_a_checkpoint_like_any_other(tmp_path):
    lines = ["He sold two new books yesterday.", "他昨天卖了两本新书。"]
    tokenizer = train_tokenizer(lines, "bpe", 60)
    model = build(transformer(16, 2, 32, 1, vocab=tokenizer.vocab_size), seed=0).eval()
    save_run(tmp_path, model, tokenizer)
    kit = open_kit(tmp_path)
    assert kit.tokenizer.encode("two books")[-1] == kit.tokenizer.eos_id
    with pytest.warns(UserWarning, match="no end was reached"):
        found = af.translate(kit, [lines[0], "", "two books"])
    with pytest.warns(UserWarning, match="no end was reached"):
        assert af.translate(tmp_path, [lines[0], "", "two books"], num_beams=4) == found
    assert len(af.embed(kit, "two books")) == 16
    assert translate(kit, "two books", do_sample=True, num_beams=1, seed=1) != found[2]
    with pytest.raises(ConfigError, match="is told no language"):
        translate(kit, "x", source="en", target="de")
