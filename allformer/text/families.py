"""The families' tokenisers: which steps turn text into pieces, and what stands around a text.

transformers 5 builds these steps itself whenever a checkpoint's `tokenizer_class` names a family,
and takes from its `tokenizer.json` the vocabulary alone; older checkpoints have only a vocabulary.
So the steps are here, as in transformers' `tokenization_*.py`. Any other class is opened from its
`tokenizer.json` as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken, processors

from allformer.text import steps
from allformer.text.settings import FAST
from allformer.text.sidecar import Token
from allformer.text.special_tokens import Special, template
from allformer.text.vocabulary import LANGUAGES, LANGUAGES_50, Names, Options, Vocabulary, extra_ids
from allformer.text.whisper import END, before_text


@dataclass(frozen=True)
class Family:
    """One family's tokeniser: its files, special tokens, steps and surroundings."""

    model: str  # "WordPiece", "BPE" or "Unigram"
    files: tuple[str, ...]  # the older files, all needed; without a tokenizer.json
    names: dict[str, Token]  # special tokens unless the checkpoint says otherwise
    build: Callable[[Vocabulary, Names, Options], tokenizers.Tokenizer]
    around: Callable[[dict[str, Special], Options], processors.PostProcessor] | None = None
    around_wins: bool = True  # over the tokenizer.json's
    further: Callable[[list[Token], Options], list[Token]] | None = None  # more special tokens
    token_types: bool = False
    padding_side: str = "right"
    language_at: str = ""
    # What stands before each text, if more than the named tokens; the end stands behind it.
    before: Callable[[tokenizers.Tokenizer, Options], tuple[Special, ...]] | None = None
    max_length: int | None = None  # unless the checkpoint says otherwise
    saved_as: str = ""  # the class that opens our tokenizer.json, where its own cannot


# ---------------------------------------------------------------------- around a text


def _cls_sep(ids: dict[str, Special], options: Options) -> processors.PostProcessor:
    return template((ids["cls"],), (ids["sep"],), (ids["sep"],), type_of_pair=1)


def _roberta_around(ids: dict[str, Special], options: Options) -> processors.PostProcessor:
    return processors.RobertaProcessing(
        ids["sep"],
        ids["cls"],
        trim_offsets=options.get("trim_offsets", True),
        add_prefix_space=options.get("add_prefix_space", False),
    )


def _clip_around(ids: dict[str, Special], options: Options) -> processors.PostProcessor:
    return processors.RobertaProcessing(
        ids["eos"], ids["bos"], trim_offsets=False, add_prefix_space=False
    )


def _eos_each(ids: dict[str, Special], options: Options) -> processors.PostProcessor:
    return template((), (ids["eos"],), (ids["eos"],))


def _bos_eos_eos(ids: dict[str, Special], options: Options) -> processors.PostProcessor:
    return template((ids["bos"],), (ids["eos"], ids["eos"]), (ids["eos"],))


# ---------------------------------------------------------------------- further special tokens


def _t5_further(symbols: list[Token], options: Options) -> list[Token]:
    if any("<extra_id_" in str(token) for token in symbols):
        return symbols
    return [*symbols, *extra_ids(options)]


def _siglip_further(symbols: list[Token], options: Options) -> list[Token]:
    """None of the model's own: in a text they are text."""
    return list(options.get("additional_special_tokens") or [])


def _mbart_further(symbols: list[Token], options: Options) -> list[Token]:
    return [*LANGUAGES, *(token for token in symbols if token not in LANGUAGES)]


def _mbart50_further(symbols: list[Token], options: Options) -> list[Token]:
    return [*symbols, *LANGUAGES_50]


_MASK = AddedToken("<mask>", lstrip=True, rstrip=False)
_SIGLIP_END = AddedToken("</s>", lstrip=True, rstrip=True, normalized=False)
_BART: dict[str, Token] = {
    "bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>",
    "mask": "<mask>",
}  # fmt: skip
_BPE_FILES = ("vocab.json", "merges.txt")
_FAIRSEQ_FILES = ("sentencepiece.bpe.model",)

FAMILIES = {  # by transformers' name of the class
    "BertTokenizer": Family(
        "WordPiece", ("vocab.txt",),
        {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
        steps.bert, _cls_sep, token_types=True,
    ),
    "RobertaTokenizer": Family("BPE", _BPE_FILES, _BART, steps.byte_bpe, _roberta_around),
    "GPT2Tokenizer": Family(
        "BPE", _BPE_FILES, dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>"), steps.byte_bpe,
    ),
    "CLIPTokenizer": Family(
        "BPE", _BPE_FILES,
        {"bos": "<|startoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>",
         "pad": "<|endoftext|>"},
        steps.clip, _clip_around,
    ),
    "WhisperTokenizer": Family(
        "BPE", _BPE_FILES,
        dict.fromkeys(("bos", "eos", "unk"), AddedToken(END, normalized=False, special=True)),
        steps.byte_bpe, before=before_text,
    ),
    "LlamaTokenizer": Family(
        "BPE", ("tokenizer.model",), {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}, steps.llama,
        padding_side="left",
    ),
    "AlbertTokenizer": Family(
        "Unigram", ("spiece.model",),
        {"bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "sep": "[SEP]", "pad": "<pad>",
         "cls": "[CLS]", "mask": "[MASK]"},
        steps.albert, _cls_sep, around_wins=False, token_types=True,
    ),
    "BigBirdTokenizer": Family(
        "Unigram", ("spiece.model",),
        {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "sep": "[SEP]",
         "cls": "[CLS]", "mask": AddedToken("[MASK]", lstrip=True, rstrip=False)},
        steps.big_bird, _cls_sep,
    ),
    "SiglipTokenizer": Family(
        "Unigram", ("spiece.model",),
        {"eos": _SIGLIP_END, "pad": _SIGLIP_END,
         "unk": AddedToken("<unk>", lstrip=True, rstrip=True, normalized=False)},
        steps.siglip, _eos_each, further=_siglip_further, max_length=64, saved_as=FAST,
    ),
    "T5Tokenizer": Family(
        "Unigram", ("spiece.model",), {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
        steps.t5, _eos_each, further=_t5_further,
    ),
    "XLMRobertaTokenizer": Family(
        "Unigram", _FAIRSEQ_FILES, _BART, steps.xlm_roberta, _bos_eos_eos,
    ),
    "MBartTokenizer": Family(
        "Unigram", _FAIRSEQ_FILES, {**_BART, "mask": _MASK}, steps.mbart, further=_mbart_further,
        language_at="after",
    ),
    "MBart50Tokenizer": Family(
        "Unigram", _FAIRSEQ_FILES,
        {**{key: value for key, value in _BART.items() if key != "bos"}, "mask": _MASK},
        steps.mbart50, further=_mbart50_further, language_at="before",
    ),
}  # fmt: skip
for _name in ("Bart", "Longformer", "LED"):
    FAMILIES[f"{_name}Tokenizer"] = FAMILIES["RobertaTokenizer"]
FAMILIES["MT5Tokenizer"] = FAMILIES["T5Tokenizer"]

BY_MODEL_TYPE = {  # config.json's model_type, where nothing names a class
    "bert": "BertTokenizer", "roberta": "RobertaTokenizer", "bart": "RobertaTokenizer",
    "gpt2": "GPT2Tokenizer", "albert": "AlbertTokenizer", "t5": "T5Tokenizer",
    "mt5": "T5Tokenizer", "xlm-roberta": "XLMRobertaTokenizer", "mbart": "MBartTokenizer",
    "mbart50": "MBart50Tokenizer", "marian": "MarianTokenizer", "longformer": "RobertaTokenizer",
    "led": "RobertaTokenizer", "big_bird": "BigBirdTokenizer", "clip": "CLIPTokenizer",
    "clip_text_model": "CLIPTokenizer", "siglip": "SiglipTokenizer",
    "siglip_text_model": "SiglipTokenizer", "whisper": "WhisperTokenizer",
}  # fmt: skip
