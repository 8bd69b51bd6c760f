"""What a reward model makes of conversations.

model, tokenizer = load("runs/reward"), load_tokenizer("runs/reward")
score_chats(model, tokenizer, [[{"role": "user", …}, {"role": "assistant", …}]])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allformer.data.batches import token_batches
from allformer.text.answers import Answers
from allformer.text.chat_default import with_chat
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import moved
from allformer.train.supervised.judging import judging
from allformer.train.supervised.packed import lay_texts
from allformer.train.supervised.scored import text_scores

Chat = Sequence[Mapping[str, Any]]


def score_chats(
    model: Any,
    tokenizer: Tokenizer,
    chats: Sequence[Chat],
    *,
    batch_tokens: int = 8192,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The score of each conversation's last answer, on the CPU: `score_chats(…)` → tensor([1.2]).

    Each is written as in training, up to the token that ends the answer.
    """
    answers = Answers(with_chat(tokenizer))
    marked = answers.encode(answers.write(chat)[-1] for chat in chats)
    rows = [np.array(each.ids, np.int64) for each in marked]
    lengths = np.array([len(row) for row in rows], np.int64)
    budget = max(batch_tokens, int(lengths.max(initial=1)))
    found = torch.zeros(len(rows), dtype=torch.float64)
    with judging(model):
        for index in token_batches(lengths, lengths, budget, seed=0, epoch=0, pool=1000):
            texts = lay_texts(lengths[index], np.concatenate([rows[i] for i in index]))
            scores = text_scores(model, moved(texts, model.device), dtype)  # type: ignore[type-var]
            found[torch.from_numpy(index)] = scores[:, 0].double().cpu()
    return found
