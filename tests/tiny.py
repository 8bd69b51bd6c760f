"""Tiny checkpoints with tokenisers of their own, as transformers writes them: for tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from allformer.text.load import load_tokenizer
from tests.loud import make_loud
from tests.parity.vocabularies import NORMAL, UNKNOWN, sentencepiece

LINES = [
    "The capital of France is Paris.",
    "Angela Merkel lives in Berlin, and her sister works for Siemens.",
    "Goethe wrote Faust in Weimar; he was born in Frankfurt.",
    "A man is eating food. Two women are playing chess outside.",
    "Der Hund läuft über die Straße, weil es regnet.",
    "你好，世界！",
]
WORDS = [
    "the", "capital", "of", "france", "is", "paris", "angela", "lives", "in", "and", "her",
    "sister", "works", "for", "goethe", "wrote", "he", "was", "born", "a", "man", "eating",
    "food", "two", "women", "are", "playing", ".", ",", ";", "!", "?", "who", "where",
]  # fmt: skip


def wordpiece(path: Path, **settings: Any) -> None:
    """BERT's, in lower case: some words whole, all others letter by letter."""
    letters = sorted({letter for line in LINES for letter in line.lower() if letter.isalpha()})
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    vocab += [token for a in letters for token in (a, f"##{a}") if token not in vocab]
    path.mkdir(parents=True, exist_ok=True)
    (path / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    _config(path, tokenizer_class="BertTokenizer", do_lower_case=True, **settings)


def byte_bpe(path: Path, kind: str, **settings: Any) -> None:
    """GPT-2's, RoBERTa's and BART's: bytes, and some words grown letter by letter."""
    gpt = kind == "GPT2Tokenizer"
    tokens = ["<|endoftext|>"] if gpt else ["<s>", "<pad>", "</s>", "<unk>"]
    tokens += sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: list[tuple[str, str]] = []
    for word in (word for line in LINES[:4] for word in line.split()):
        grown = "Ġ"
        for letter in word.strip(".,;"):
            if (grown, letter) not in merges:
                merges.append((grown, letter))
                tokens.append(grown + letter)
            grown += letter
    tokens += [] if gpt else ["<mask>"]
    path.mkdir(parents=True, exist_ok=True)
    vocab = json.dumps({token: i for i, token in enumerate(tokens)})
    (path / "vocab.json").write_text(vocab, encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (path / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _config(path, tokenizer_class=kind, **settings)


def unigram(path: Path, kind: str, specials: Sequence[str], **settings: Any) -> None:
    """T5's, ALBERT's and mBART's: a tokenizer.json of words and letters."""
    pieces = [*specials, "▁"]
    pieces += dict.fromkeys(f"▁{word}" for line in LINES for word in re.findall(r"\w+", line))
    pieces += sorted({letter for line in LINES for letter in line} - {" "} - set(pieces))
    scores = [(piece, 0.0 if piece in specials else -float(i)) for i, piece in enumerate(pieces)]
    inner = tokenizers.Tokenizer(models.Unigram(scores, unk_id=pieces.index("<unk>")))
    inner.normalizer = normalizers.NFKC()
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    inner.add_special_tokens(list(specials))
    if "</s>" in specials:
        inner.post_processor = processors.TemplateProcessing(
            single="$A </s>",
            pair="$A </s> $B </s>",
            special_tokens=[("</s>", specials.index("</s>"))],
        )
    elif "<s>" in specials:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", specials.index("<s>"))]
        )
    path.mkdir(parents=True, exist_ok=True)
    inner.save(str(path / "tokenizer.json"))
    _config(path, tokenizer_class=kind, **settings)


def _config(path: Path, **settings: Any) -> None:
    text = json.dumps(settings, indent=2)
    (path / "tokenizer_config.json").write_text(text, encoding="utf-8")


def marian(path: Path, **settings: Any) -> None:
    """Two sentencepiece models and one table for both."""
    pieces = [("<unk>", 0.0, UNKNOWN), ("▁", -1.0, NORMAL)]
    words = dict.fromkeys(f"▁{word}" for line in LINES for word in re.findall(r"\w+", line))
    letters = sorted({letter for line in LINES for letter in line} - {" "})
    pieces += [(piece, -2.0 - i, NORMAL) for i, piece in enumerate([*words, *letters])]
    path.mkdir(parents=True, exist_ok=True)
    for name in ("source.spm", "target.spm"):
        (path / name).write_bytes(sentencepiece(pieces))
    table = ["</s>", "<unk>", *(piece for piece, _, _ in pieces[1:]), ">>fra<<", "<pad>"]
    text = json.dumps({piece: i for i, piece in enumerate(table)}, ensure_ascii=False)
    (path / "vocab.json").write_text(text, encoding="utf-8")
    _config(path, tokenizer_class="MarianTokenizer", **settings)


def write(path: Path, model: type, config: Any, seed: int = 0) -> Path:
    """A loud model of transformers beside its tokeniser, in fp32."""
    torch.manual_seed(seed)
    made: Any = make_loud(model(config).eval(), seed, tables=None)
    if hasattr(made, "tie_weights"):
        made.tie_weights()
    made.save_pretrained(path)
    return path


def size(path: Path) -> int:
    """How many ids the tokeniser of a directory has."""
    return load_tokenizer(path).vocab_size


def edit(path: Path, **fields: Any) -> Path:
    """Change a JSON file: `edit(path / "config.json", max_length=20)`."""
    raw = json.loads(path.read_text(encoding="utf-8")) | fields
    path.write_text(json.dumps(raw), encoding="utf-8")
    return path


def labelled(*names: str, **more: Any) -> dict[str, Any]:
    """The labels of a config.json."""
    numbers = {name: i for i, name in enumerate(names)}
    return {"id2label": {i: name for name, i in numbers.items()}, "label2id": numbers, **more}


NER = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC")
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
MASK = {
    "__type": "AddedToken", "content": "[MASK]", "lstrip": True, "normalized": False,
    "rstrip": False, "single_word": False, "special": True,
}  # fmt: skip
BERT = {
    "bare": ("BertModel", {}),
    "mlm": ("BertForMaskedLM", {}),
    "pretrain": ("BertForPreTraining", {}),
    "class": ("BertForSequenceClassification", labelled("NO", "MAYBE", "YES")),
    "multi": (
        "BertForSequenceClassification",
        labelled("a", "b", "c", problem_type="multi_label_classification"),
    ),
    "one": ("BertForSequenceClassification", labelled("near")),
    "regression": (
        "BertForSequenceClassification",
        labelled("stars", problem_type="regression"),
    ),
    "ner": ("BertForTokenClassification", labelled(*NER)),
    "qa": ("BertForQuestionAnswering", {}),
    "choice": ("BertForMultipleChoice", {}),
}
SUMMARY = {
    "early_stopping": True, "length_penalty": 2.0, "max_length": 20, "min_length": 5,
    "no_repeat_ngram_size": 3, "num_beams": 4, "prefix": "summarize: ",
}  # fmt: skip
TASKS = {
    "summarization": SUMMARY,
    "translation_en_to_de": {
        "early_stopping": True, "max_length": 30, "num_beams": 4,
        "prefix": "translate English to German: ",
    },
    "translation_en_to_fr": {"max_length": 30, "prefix": "translate English to French: "},
}  # fmt: skip


def make(path: Path, name: str) -> Path:
    """A checkpoint by name: `make(tmp_path, "bert-mlm")`."""
    family, _, kind = name.partition("-")
    MAKERS[family](path, kind)
    return path


def _bert(path: Path, kind: str) -> None:
    import transformers as hf

    wordpiece(path, model_max_length=48)
    model, more = BERT[kind]
    config = hf.BertConfig(vocab_size=size(path), max_position_embeddings=48, **SIZES, **more)
    write(path, getattr(hf, model), config)


def _roberta(path: Path, kind: str) -> None:
    import transformers as hf

    byte_bpe(
        path, "RobertaTokenizer", model_max_length=62, mask_token={**MASK, "content": "<mask>"}
    )
    model = {"mlm": hf.RobertaForMaskedLM, "ner": hf.RobertaForTokenClassification}[kind]
    more = labelled(*NER) if kind == "ner" else {}
    config = hf.RobertaConfig(
        vocab_size=size(path), max_position_embeddings=64, type_vocab_size=1, **SIZES, **more
    )
    write(path, model, config)


def _longformer(path: Path, kind: str) -> None:
    import transformers as hf

    mask = {**MASK, "content": "<mask>"}
    byte_bpe(path, "LongformerTokenizer", model_max_length=62, mask_token=mask)
    heads = {
        "mlm": hf.LongformerForMaskedLM,
        "class": hf.LongformerForSequenceClassification,
        "qa": hf.LongformerForQuestionAnswering,
        "choice": hf.LongformerForMultipleChoice,
    }
    more = labelled("NO", "MAYBE", "YES") if kind == "class" else {}
    config = hf.LongformerConfig(
        vocab_size=size(path), max_position_embeddings=64, type_vocab_size=1,
        attention_window=[8, 16], **SIZES, **more,
    )  # fmt: skip
    write(path, heads[kind], config)


def _led(path: Path, kind: str) -> None:
    import transformers as hf

    byte_bpe(path, "LEDTokenizer", model_max_length=64)
    places = {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64}
    config = hf.LEDConfig(**_pair(path), **places, attention_window=[8, 16])
    write(path, hf.LEDForConditionalGeneration, config)


def _albert(path: Path, kind: str) -> None:
    import transformers as hf

    specials = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    unigram(path, "AlbertTokenizer", specials, model_max_length=64, mask_token=MASK)
    config = hf.AlbertConfig(
        vocab_size=size(path), embedding_size=16, max_position_embeddings=64, **SIZES
    )
    write(path, hf.AlbertForMaskedLM, config)


def _gpt2(path: Path, kind: str) -> None:
    import transformers as hf

    byte_bpe(path, "GPT2Tokenizer", model_max_length=64)
    more = labelled("NO", "YES") if kind else {}
    config = hf.GPT2Config(
        vocab_size=size(path), n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0,
        eos_token_id=0, pad_token_id=7 if kind == "class" else None, **more,
    )  # fmt: skip
    write(path, hf.GPT2ForSequenceClassification if kind else hf.GPT2LMHeadModel, config)


def _llama(path: Path, kind: str) -> None:
    import transformers as hf

    template = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}<assistant>{% endif %}"
    unigram(
        path, "PreTrainedTokenizerFast", ["<unk>", "<s>"], chat_template=template, bos_token="<s>"
    )
    config = hf.LlamaConfig(
        vocab_size=size(path), bos_token_id=1, eos_token_id=None, pad_token_id=None,
        max_position_embeddings=512, **SIZES,
    )  # fmt: skip
    write(path, hf.LlamaForCausalLM, config)


def _t5(path: Path, kind: str) -> None:
    import transformers as hf

    unigram(path, "T5Tokenizer", ["<pad>", "</s>", "<unk>"], extra_ids=0, model_max_length=512)
    config = hf.T5Config(
        vocab_size=size(path), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    write(path, hf.T5ForConditionalGeneration, config)
    if kind != "plain":
        edit(path / "config.json", task_specific_params=TASKS)


def _bart(path: Path, kind: str) -> None:
    import transformers as hf

    byte_bpe(path, "BartTokenizer", model_max_length=64)
    more = labelled("NO", "YES") if kind == "class" else {}
    config = hf.BartConfig(**_pair(path), max_position_embeddings=64, **more)
    heads = {"class": hf.BartForSequenceClassification, "qa": hf.BartForQuestionAnswering}
    write(path, heads.get(kind, hf.BartForConditionalGeneration), config)


def _mbart(path: Path, kind: str) -> None:
    """`kind` 50 has the code before the text."""
    import transformers as hf

    specials = ["<s>", "<pad>", "</s>", "<unk>", "en_XX", "de_DE", "<mask>"]
    unigram(path, f"MBart{kind}Tokenizer", specials, src_lang="en_XX", model_max_length=64)
    config = hf.MBartConfig(
        **_pair(path), max_position_embeddings=64, decoder_start_token_id=2 if kind else None
    )
    write(path, hf.MBartForConditionalGeneration, config)


def _marian(path: Path, kind: str) -> None:
    import transformers as hf

    marian(path)
    pad = size(path) - 1
    config = hf.MarianConfig(
        **_pair(path), max_position_embeddings=64, pad_token_id=pad, eos_token_id=0,
        decoder_start_token_id=pad, forced_eos_token_id=0,
    )  # fmt: skip
    write(path, hf.MarianMTModel, config)


def _pair(path: Path) -> dict[str, int]:
    sizes = {"d_model": 32, "vocab_size": size(path)}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 48}
    return sizes


MAKERS: dict[str, Callable[[Path, str], None]] = {
    "bert": _bert, "roberta": _roberta, "albert": _albert, "gpt2": _gpt2, "llama": _llama,
    "t5": _t5, "bart": _bart, "mbart": _mbart, "marian": _marian, "longformer": _longformer,
    "led": _led,
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Callable[[str], Path]:
    """`checkpoint("bert-mlm")`: made once for a module's tests, which leave it as it is."""
    home, made = tmp_path_factory.mktemp("checkpoints"), {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = make(home / name, name)
        return made[name]

    return get
