"""Write marian.json: a tiny Marian checkpoint and what transformers makes of the torture texts.

`python -m tests.parity.make_marian`, on a machine with the sentencepiece package: MarianTokenizer
is the one tokeniser of transformers 5 that needs it, and the tests are to run without.
"""

from __future__ import annotations

import base64
import io
import json
import random
import tempfile
from pathlib import Path

from tests.parity.torture import PAIRS, RUNS, TEXTS

FILE = Path(__file__).with_name("marian.json")
ASKED = TEXTS + RUNS
RULES = {  # a small table in the place of NFKC's 240 KB
    "e\u0301": "é", "\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ", "\r": "",
    "\x07": "", "ﬁ": "fi", "Ⅷ": "VIII", "ﷺ": "صلى الله عليه وسلم", "Ａ": "A", "ſ": "s", "…": "...",
    "か\u3099": "が", "e\u0301\u0323": "ẹ\u0301", "\u200b": " ", "™": "TM", "ç": "c\u0327",
}  # fmt: skip


def train(lines: list[str], **options: object) -> bytes:
    """A sentencepiece model's bytes."""
    import sentencepiece

    out = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as table:
        for old, new in RULES.items():
            codes = (" ".join(f"{ord(char):04X}" for char in text) for text in (old, new))
            table.write("\t".join(codes) + "\n")
        table.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=out, minloglevel=2,
            character_coverage=0.98, hard_vocab_limit=False,
            **{"vocab_size": 420, "normalization_rule_tsv": table.name, **options},
        )  # fmt: skip
    return out.getvalue()


def checkpoint(directory: Path, **options: object) -> None:
    """Write source.spm, target.spm, vocab.json and the configs."""
    import sentencepiece

    lines = [text for text in TEXTS[3:] if "\x00" not in text] * 3
    models = {"source.spm": train(lines[::2], **options), "target.spm": train(lines, **options)}
    directory.mkdir(parents=True, exist_ok=True)
    pieces: dict[str, None] = {}
    for name, model in models.items():
        (directory / name).write_bytes(model)
        loaded = sentencepiece.SentencePieceProcessor(model_file=str(directory / name))
        pieces |= dict.fromkeys(loaded.id_to_piece(i) for i in range(3, len(loaded)))
    order = list(pieces)
    random.Random(0).shuffle(order)
    tokens = ["</s>", "<unk>", *order, ">>fra<<", "<pad>"]
    vocab = {token: i for i, token in enumerate(tokens)}
    (directory / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (directory / "config.json").write_text('{"model_type": "marian"}')
    config = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "fr"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def answers(directory: Path) -> dict[str, object]:
    """What transformers says to every text."""
    import sentencepiece
    from transformers import MarianTokenizer

    marian = MarianTokenizer.from_pretrained(str(directory))
    source = sentencepiece.SentencePieceProcessor(model_file=str(directory / "source.spm"))
    ids = [marian.encode(text) for text in ASKED]
    return {
        "normal": [source.normalize(text).replace(" ", "▁") for text in ASKED],
        "ids": ids,
        "plain": [marian.encode(text, add_special_tokens=False) for text in ASKED],
        "target": [marian(text_target=text)["input_ids"] for text in ASKED],
        "pairs": [marian.encode(*pair) for pair in PAIRS],
        "text": [marian.decode(row, skip_special_tokens=True) for row in ids],
        "whole": [marian.decode(row) for row in ids],
        "size": len(marian),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        checkpoint(directory)
        files = {
            file.name: base64.b64encode(file.read_bytes()).decode()
            for file in sorted(directory.iterdir())
        }
        golden = {"files": files, **answers(directory)}
    FILE.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
