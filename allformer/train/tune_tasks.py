"""What `allformer tune` takes for granted: of a task its objective and settings, of a method its
rate. Each is a beginning that the recipe may change; docs/tuning.md gives the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The peak of the rate, of a method on a head that says words, and beside a head that is new.
RATES: Mapping[str, tuple[float, float]] = {
    "full": (2e-5, 3e-5),  # Devlin et al. (2019), A.3: 2e-5 … 5e-5
    "lora": (2e-4, 5e-4),  # Dettmers et al. (2023), table 9; Hu et al. (2021), table 9
    "ia3": (3e-3, 3e-3),  # Liu et al. (2022), section 3.3
    "bitfit": (5e-4, 1e-3),  # Ben Zaken et al. (2021), section 4: 1e-4 … 1e-2
    "bottleneck": (3e-4, 1e-3),  # Houlsby et al. (2019), section 3.1: 3e-5 … 3e-3
    "prefix": (1e-3, 1e-2),
    "prompt": (1e-2, 3e-2),  # Lester et al. (2021), section 3.2, is higher still: 0.3
}
OTHER = (2e-4, 5e-4)  # a method of somebody's own


@dataclass(frozen=True)
class Task:
    """What is learnt, and how; `columns` are those of the data that can be named."""

    objective: str
    about: str
    best: str = "nll"
    columns: tuple[str, ...] = ()
    epochs: float = 3
    length: int | None = 256  # tokens of an example at most; None: what it reads is no text
    rows: int | None = 32  # at most, in a batch
    tokens: int | None = 4096  # of a batch; None: its rows alone say how large it is
    schedule: str = "linear"
    pairs: bool = False  # two files or columns, a text for a text
    fresh: bool = False  # whether its head is new to the model
    head: str | None = None  # the kind that stands in the place of one for another end (new_head)
    spoken: bool = False  # whether `source` is the language that is heard
    slow: float = 1.0  # of the method's rate: preferences move what is there a little
    rewards: bool = False  # whether answers are judged by what `--reward` names
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of other sections


_LONG: dict[str, Any] = {"length": 1024, "rows": None, "schedule": "cosine"}
_SEEN: dict[str, Any] = {"epochs": 10, "length": None, "tokens": None, "fresh": True}
_PAIRS: dict[str, Any] = {"columns": ("source", "target"), "pairs": True, "rows": 64}

# From its own answers: prompts, which are short; rates that do not fall, as nothing is repeated.
_OWN: dict[str, Any] = {
    "best": "reward", "epochs": 1, "length": 512, "rows": None, "schedule": "constant", "slow": 0.1,
    "rewards": True,
}  # fmt: skip

TASKS: Mapping[str, Task] = {
    "sft": Task("instruction", "to answer: conversations", **_LONG),
    "classify": Task(
        "classification", "texts into classes", "accuracy", ("text", "text_pair", "label"),
        fresh=True, head="classes",
    ),
    "tag": Task("tagging", "words by tags", "f1", ("tokens", "tags"), epochs=5, fresh=True,
                head="tags"),
    "answer": Task(
        "answering", "where in a text an answer stands", "f1", ("question", "context", "answers"),
        length=384, rows=16, fresh=True, head="spans",
    ),
    "choose": Task(
        "choice", "which of several texts goes with a question", "accuracy",
        ("question", "beginning", "choices", "label"), length=128, rows=16, fresh=True,
        head="choice",
    ),
    "embed": Task(
        "vectors", "vectors of sentences", "nll", ("text_a", "text_b", "negative", "score"),
        epochs=1, length=128, rows=64, slow=0.5,
    ),
    "translate": Task("seq2seq", "sentences into another language", **_PAIRS),
    "summarise": Task("seq2seq", "long texts into short ones", **{**_PAIRS, "rows": 16},
                      length=1024, more={"data": {"truncate": True}}),
    "reward": Task(
        "reward", "a score of answers, from pairs of them", **_LONG, epochs=1, fresh=True, slow=0.5
    ),
    "dpo": Task("dpo", "the better of two answers", **_LONG, epochs=1, slow=0.1),
    "kto": Task("kto", "answers that somebody found good or bad", **_LONG, epochs=1, slow=0.1),
    "grpo": Task("grpo", "its own answers, by rewards: the better ones of a group", **_OWN),
    "ppo": Task("ppo", "its own answers, by rewards: what was better than expected", **_OWN),
    "images": Task(
        "image-classification", "pictures into classes", "accuracy", **_SEEN, rows=64,
        schedule="cosine", head="classes",
    ),
    "detect": Task("detection", "where in a picture which objects are", **_SEEN, rows=16,
                   head="none"),
    "segment": Task("segmentation", "what each pixel shows", "mean_iou", **_SEEN, rows=16,
                    head="none"),
    "transcribe": Task(
        "transcription", "what is said in recordings", "wer", epochs=5, length=448, tokens=None,
        spoken=True,
    ),
}  # fmt: skip
