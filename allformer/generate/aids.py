"""What may help a search without changing what it is: a prefix, guesses, a smaller memory.

They need a state that can be taken back, kept and chosen, so they have the plain stepper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.core.states import in_int8
from allformer.errors import ConfigError
from allformer.generate.beams import search_beams
from allformer.generate.checks import check_guessing
from allformer.generate.decode import decode
from allformer.generate.drafts import Ngrams, Smaller, make_draft, own_guessing
from allformer.generate.fixed import quickest
from allformer.generate.options import GenerationConfig
from allformer.generate.prefix import Prefix
from allformer.generate.request import Generated, Request
from allformer.generate.speculative import speculate
from allformer.generate.static import static_stepper
from allformer.generate.stepper import Stepper, plain_stepper, stepper_for

AnyModel = EncoderDecoderModel | DecoderOnlyModel


@dataclass
class Aids:
    """What the caller of `generate` has given of them, by its names there."""

    prefix: Prefix | None = None
    assistant_model: AnyModel | None = None
    cache: str | None = None

    def options(self) -> list[GenerationConfig]:
        """Options that the assistant comes with."""
        if self.assistant_model is None:
            return []
        stepper_for(self.assistant_model)  # refuses what cannot generate
        return own_guessing(self.assistant_model)

    def asked(self, g: GenerationConfig) -> bool:
        """Whether there is any, by settled options."""
        given = (self.prefix, self.assistant_model, self.cache, g.prompt_lookup_num_tokens)
        return any(each is not None for each in given)

    def check(self, model: AnyModel, g: GenerationConfig, options: Mapping[str, Any]) -> None:
        """Refuse what cannot be; `options` are the caller's own."""
        if not isinstance(self.prefix, Prefix | None):
            raise ConfigError(f"prefix={self.prefix!r} must be a Prefix; try prefix=af.Prefix()")
        if self.cache not in (None, "int8"):
            raise ConfigError(f'cache={self.cache!r} is not a choice; try "int8", or leave it out')
        if g.use_cache is False and (self.prefix is not None or self.cache):
            name = f"cache={self.cache!r}" if self.prefix is None else "prefix"
            raise ConfigError(
                f"use_cache=False leaves {name} nothing to keep; leave one of them out"
            )
        if self.prefix is not None and isinstance(model, EncoderDecoderModel):
            raise ConfigError(
                "prefix is for a decoder: an encoder reads its source both ways, so that a "
                "beginning in common says nothing; leave it out"
            )
        if self.assistant_model is not None:
            check_guessing(g, "assistant_model")
            if options.get("prompt_lookup_num_tokens"):
                raise ConfigError(
                    "assistant_model and prompt_lookup_num_tokens both guess ahead; give one of "
                    "them"
                )
        self._check_steady(model, g)

    def _check_steady(self, model: AnyModel, g: GenerationConfig) -> None:
        """Refuse angles that go by the longest text of a call: how much is read at once has a say
        there, and what is said would be another."""
        stack: Any = model.config.decoder
        if stack.steady:
            return
        guesses = {"prompt_lookup_num_tokens": g.prompt_lookup_num_tokens}
        given = {"prefix": self.prefix, "assistant_model": self.assistant_model, **guesses}
        name = next((name for name, value in given.items() if value is not None), None)
        if name is not None:
            raise ConfigError(
                f"{name}: with {type(stack.relative.scaling).__name__} the longest text of a call "
                f"turns all tokens, so that reading them otherwise changes what is said; leave it "
                f"out"
            )

    def search(
        self,
        model: AnyModel,
        g: GenerationConfig,
        request: Request,
        ids: Tensor,
        source: Tensor,
        mask: Tensor | None,
        inputs: Mapping[str, Tensor],
        dtype: torch.dtype | None,
    ) -> Generated:
        """What `request` asks for, from the prompt `ids`; the rest is for a stepper's `open`."""
        if dtype is torch.int8:  # which the lean way has alone
            raise ConfigError(
                "dtype=torch.int8 goes with no prefix, no guesses and no other cache; leave it "
                "out, or make the weights small: af.quantise(model, 'int8')"
            )
        draft = self._draft(model, g, source, dtype)
        ahead = int(request.limit.max())
        plain = plain_stepper(model, dtype)
        if isinstance(draft, Smaller):
            draft.open(ids.shape[1], ahead, request.copies, source, mask, **inputs)
        if draft is not None and self.prefix is None and self.cache is None:
            width = draft.most + 1
            plain = quickest(model, ids.shape[1], ahead, width, request.copies, dtype)
        stepper: Stepper = plain
        if draft is None and self.cache is None:
            stepper = static_stepper(model, dtype) or plain  # whose state becomes plain again
        state = stepper.open(source, mask, g.use_cache is not False, **inputs)
        state.ahead = ahead
        if self.cache is not None and state.cache is not None:
            in_int8(state.cache)
        kept: AbstractContextManager[None] = nullcontext()
        if self.prefix is not None:
            alone = len(ids) * request.copies == 1
            kept = self.prefix.lent(state, ids, model, (dtype, self.cache), alone)
        try:
            with kept:
                if draft is not None:
                    return speculate(plain, state, ids, request, draft)
                find = search_beams if (g.num_beams or 1) > 1 else decode
                return find(stepper, state, ids, request)
        finally:
            state.close()

    def _draft(
        self,
        model: AnyModel,
        g: GenerationConfig,
        source: Tensor,
        dtype: torch.dtype | None,
    ) -> Ngrams | Smaller | None:
        """Who guesses ahead; a source with the decoder's tokens is looked in too."""
        stacks = model.config.stacks
        alike = len({stack.source.vocab for stack in stacks.values()}) == 1 and len(stacks) > 1
        return make_draft(model, self.assistant_model, g, source if alike else None, dtype)
