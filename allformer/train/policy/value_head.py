"""What a text is worth so far, token by token: a head on the policy's body, or a model of its own.

    objective: {is: ppo, value: {is: head, weight: 0.1, rate: 2e-4}}
    objective: {is: ppo, value: {is: model, checkpoint: runs/reward}}

Legend: M tokens that are said; a value stands where its token is not yet said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from allformer.checkpoint.adapter.files import is_adapter
from allformer.checkpoint.save import save
from allformer.checkpoint.weights import put_weights, read_tensors, save_weights
from allformer.core.linear import Linear
from allformer.core.precision import widen
from allformer.errors import ConfigError
from allformer.train.preferences.said import Said, said_states
from allformer.train.sections.head import gives_one_number, one_number
from allformer.train.sections.model import CheckpointModel
from allformer.train.sections.section import NotNegative, Section, positive
from allformer.train.weights import begin

LABEL = "value"  # what the number of a model of its own is called
HEAD, MODEL = "value_head.safetensors", "value"  # what a run keeps of them, where it is asked
Say = Callable[[str], None]
Clip = Annotated[float, positive("0.2, or null for none")]
Rate = Annotated[float, positive("2e-4")]


class ValueHead(nn.Module):
    """One number from each state of the policy, M dim → M: zero at first, as nothing is known."""

    shares: ClassVar[bool] = True  # the policy's states

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = Linear(dim, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """No value yet: a random one would be learnt from as if it were one."""
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, states: Tensor, said: Said, dtype: torch.dtype | None = None) -> Tensor:
        values: Tensor = self.out(widen(states)).squeeze(-1)
        return values

    def keep(self, run: Path) -> None:
        """Write it into a run."""
        save_weights(self, run / HEAD)


class ValueModel(nn.Module):
    """A decoder whose head gives one number, asked at each token: as a reward model is made."""

    shares: ClassVar[bool] = False

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, states: Tensor, said: Said, dtype: torch.dtype | None = None) -> Tensor:
        values: Tensor = self.model.head(said_states(self.model, said, dtype))  # M 1
        return widen(values).squeeze(-1)

    def keep(self, run: Path) -> None:
        """Write it into a directory of the run, which `load` opens."""
        save(self.model, run / MODEL, family="allformer")


@dataclass(frozen=True)
class Value(Section, section="objective.value", key="is", default="head"):
    """`rate`: its peak, on the policy's schedule. `clip`: how far a value may go from what it was
    when the answers were drawn, before nothing more is learnt. `checkpoint`: where to begin, else
    at nothing. `keep`: whether the run keeps it; else it is gone when training has ended."""

    rate: Rate = 1e-5  # Ouyang et al. (2022), C.4: 9e-6
    clip: Clip | None = 0.2
    checkpoint: str | None = None
    keep: bool = False

    @property
    def teaches(self) -> float:
        """How much the policy's body learns from what the value loses."""
        return 0.0

    def make(self, policy: Any, asked: Any, say: Say) -> Any:
        """The module for a policy whose recipe asked for the model so, on its device."""
        raise NotImplementedError


@dataclass(frozen=True)
class OnBody(Value, named="head"):
    """On the policy's body, which learns from it by `weight`; 0: the head alone does. The head
    starts at zero and reads many features at once: at 1e-3 it takes the answers of a rollout, which
    are few, for the rule, and at a policy's usual rate it learns nothing for long."""

    rate: Rate = 2e-4
    weight: NotNegative = 0.1  # TRL's

    @property
    def teaches(self) -> float:
        return self.weight

    def make(self, policy: Any, asked: Any, say: Say) -> ValueHead:
        head = ValueHead(policy.config.decoder.dim).to(policy.device)
        if self.checkpoint is not None:
            path = Path(self.checkpoint) / HEAD
            if not path.is_file():
                raise ConfigError(
                    f"objective.value.checkpoint={self.checkpoint!r} has no {HEAD}; give a run "
                    f"that was trained with objective.value.keep=true, or leave it out"
                )
            put_weights(head, read_tensors(path), str(path))
        return head


@dataclass(frozen=True)
class OfItsOwn(Value, named="model"):
    """A model of its own, trained whole: the policy's checkpoint, or another of the same
    vocabulary, such as the reward model (Ouyang et al., 2022, section C.4)."""

    def make(self, policy: Any, asked: Any, say: Say) -> ValueModel:
        start = self._start(asked)
        tree = start.tree()
        if tree.decoder.source.vocab != policy.config.decoder.source.vocab:
            raise ConfigError(
                f"objective.value.checkpoint={start.checkpoint!r} has "
                f"{tree.decoder.source.vocab:,} ids, but the policy has "
                f"{policy.config.decoder.source.vocab:,}; give one with the policy's tokeniser"
            )
        if not gives_one_number(tree.head):
            tree = one_number(tree, LABEL)
        found = begin(start, tree, policy.device, say)
        if found.fresh:
            nn.init.zeros_(found.model.head.out.weight)
        return ValueModel(found.model.eval())

    def _start(self, asked: Any) -> CheckpointModel:
        if self.checkpoint is not None:
            found = CheckpointModel(self.checkpoint)
            if is_adapter(found.directory):
                raise ConfigError(
                    f"objective.value.checkpoint={self.checkpoint!r} is an adapter beside another "
                    f"model's weights; put both together first: allformer convert "
                    f"{self.checkpoint} OUT --merge, and give OUT"
                )
            return found
        if isinstance(asked, CheckpointModel):
            return CheckpointModel(asked.checkpoint)
        raise ConfigError(
            "objective.value.is=model: the policy has no checkpoint to begin with; give "
            "objective.value.checkpoint, or choose objective.value.is=head"
        )
