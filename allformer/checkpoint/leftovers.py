"""What an older checkpoint leaves behind in a directory where a new one takes its place.

Only files whose names are known are ever removed, and only when the new ones are all there.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

CERTIFICATE = "certificate.json"
TOKENISER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm",
    "vocab.txt", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "chat_template.jinja",
    "chat_template.json",
)  # fmt: skip
# How it generates, how it makes vectors, and how its images are prepared.
USES = (
    "generation_config.json", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json", "preprocessor_config.json", "processor_config.json",
)  # fmt: skip


def remove_leftovers(directory: Path, new: Collection[str], *, another: bool) -> None:
    """Remove what the directory's older checkpoint had and the `new` files are not.

    The certificate always: it is one of other weights. The tokeniser and the like, where that was
    `another` model: then they would be taken for the new one's.
    """
    names = (CERTIFICATE, *TOKENISER, *USES) if another else (CERTIFICATE,)
    for name in names:
        if name not in new:
            (directory / name).unlink(missing_ok=True)
    if another and "chat_templates" not in new:
        for file in (directory / "chat_templates").glob("*.jinja"):
            file.unlink()
