"""A vocabulary, from whichever files hold it."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models

from allformer.errors import DataError
from allformer.text.sentencepiece import CONTROL, USER_DEFINED, read_sentencepiece
from allformer.text.sidecar import Token

# fmt: off
LANGUAGES = (  # mBART's; fairseq's order is that of their ids
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN",
    "it_IT", "ja_XX", "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO",
    "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN",
)
LANGUAGES_50 = (
    *LANGUAGES, "af_ZA", "az_AZ", "bn_IN", "fa_IR", "he_IL", "hr_HR", "id_ID", "ka_GE", "km_KH",
    "mk_MK", "ml_IN", "mn_MN", "mr_IN", "pl_PL", "ps_AF", "pt_XX", "sv_SE", "sw_KE", "ta_IN",
    "te_IN", "th_TH", "tl_XX", "uk_UA", "ur_PK", "xh_ZA", "gl_ES", "sl_SI",
)
# fmt: on
Names = dict[str, Token | None]  # "pad" → its token
Options = dict[str, Any]  # tokenizer_config.json


@dataclass
class Vocabulary:
    """What the files hold."""

    tokens: dict[str, int] = field(default_factory=dict)  # WordPiece, BPE
    merges: list[tuple[str, str]] = field(default_factory=list)  # BPE
    pieces: list[tuple[str, float]] = field(default_factory=list)  # Unigram, with scores
    charsmap: bytes = b""
    symbols: list[Token] | None = None  # a sentencepiece model's control and user symbols


def check_ids(ids: Iterable[int], where: str) -> None:
    """Refuse ids far beyond the number of tokens: the library counts through all of them."""
    known = list(ids)
    most = max(known, default=0)
    if most > 1_000_000 + 10 * len(known):
        raise DataError(
            f"{where} has the id {most:,} among {len(known):,} tokens; ids must run without great "
            f"gaps: copy it again"
        )


def from_pipeline(pipeline: dict[str, Any]) -> Vocabulary:
    """Out of a `tokenizer.json`: its vocabulary, and sentencepiece's table of characters."""
    model = pipeline["model"]
    normalizer = pipeline.get("normalizer")
    steps = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else []
    charsmap = b""
    for step in steps:
        if step.get("type") == "Precompiled" and not charsmap:
            charsmap = base64.b64decode(step["precompiled_charsmap"])
    if model["type"] == "Unigram":
        pieces = [(text, score) for text, score in model["vocab"]]
        return Vocabulary(pieces=pieces, charsmap=charsmap)
    merges = [
        (left, right)
        for left, right in (
            pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", ())
        )
    ]
    return Vocabulary(model["vocab"], merges, charsmap=charsmap)


def from_files(files: list[Path], model: str) -> Vocabulary:
    """`from_files([vocab_txt], "WordPiece")`; BPE from two files or a sentencepiece model."""
    try:
        if model == "WordPiece":
            return Vocabulary(models.WordPiece.read_file(str(files[0])))
        if len(files) == 2:
            tokens, merges = models.BPE.read_file(*map(str, files))
            check_ids(tokens.values(), str(files[0]))
            return Vocabulary(tokens, merges)
    except DataError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise DataError(
            f"{' and '.join(map(str, files))} cannot be read: {str(error)[:300]}"
        ) from None
    spm = read_sentencepiece(files[0])
    symbols: list[Token] = [
        AddedToken(piece.text, normalized=False, special=piece.kind == CONTROL)
        for piece in spm.pieces
        if piece.kind in (CONTROL, USER_DEFINED)
    ]
    if model == "BPE":
        tokens = {piece.text: i for i, piece in enumerate(spm.pieces)}
        return Vocabulary(
            tokens, spm.merges(by_score=False), charsmap=spm.charsmap, symbols=symbols
        )
    pieces = [(piece.text, piece.score) for piece in spm.pieces]
    return Vocabulary(pieces=pieces, charsmap=spm.charsmap, symbols=symbols)


def extra_ids(options: Options) -> list[str]:
    """T5's sentinels: `extra_ids({"extra_ids": 2})` → `["<extra_id_0>", "<extra_id_1>"]`."""
    return [f"<extra_id_{i}>" for i in range(options.get("extra_ids", 100))]
