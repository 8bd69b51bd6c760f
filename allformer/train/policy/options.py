"""What the on-policy objectives have to set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from allformer.train.policy.rewards import read_rewards
from allformer.train.policy.rollout import Sampling
from allformer.train.preferences.compared import ReferenceOptions
from allformer.train.sections.section import Count, at_least
from allformer.train.supervised.data import RecordData


@dataclass(frozen=True)
class PromptData(RecordData):
    """A prompt a record: a question, a conversation (its last answer is left out), or a text."""

    max_length: Annotated[int, at_least(4)] = 512  # tokens of a prompt, the template's too


@dataclass(frozen=True)
class PolicyOptions(ReferenceOptions, section="objective"):
    """`rewards`: what an answer is worth (`policy.rewards`). A rollout is the answers to `prompts`
    prompts; it is cut into `minibatches` steps, and gone through `iterations` times."""

    rewards: Sequence[Any] = ()
    prompts: Count = 8
    iterations: Count = 1
    minibatches: Count = 1
    validate: Count = 128  # held-out prompts that are answered at a validation, the first ones
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rewards", read_rewards(self.rewards))
        super().__post_init__()
