"""Whole models: stacks and a head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allformer.config.adaptive import AdaptiveHead, AdaptiveTokens
from allformer.config.base import Config
from allformer.config.check import refuse
from allformer.config.counting import Part
from allformer.config.head import ClassHead, Head, LMHead, Pool, heads_of
from allformer.config.stack import Stack
from allformer.errors import ConfigError


class Model(Config, slot=True):
    """A whole model. What is asked of any shape is answered here."""

    head: Head | None
    pool: Pool | None = None
    shared: bool = False  # one table of tokens for all stacks

    @property
    def stacks(self) -> dict[str, Stack]:
        """By name, in the order in which they run: `{"encoder": …, "decoder": …}`."""
        return {name: slot for name, slot in vars(self).items() if isinstance(slot, Stack)}

    @property
    def reader(self) -> Stack:
        """The stack that reads the text: the encoder, if there is one."""
        return next(iter(self.stacks.values()))

    @property
    def writer(self) -> Stack:
        """The last stack, whose states go to the head."""
        return list(self.stacks.values())[-1]

    def lines(self, n: int) -> Iterator[Part]:
        """Its lines in the count, at n tokens."""
        for name, stack in self.stacks.items():
            yield from stack.lines(name, n, self.shared and stack is not self.reader)
        if self.pool is not None:
            yield self.pool.line(self.writer.states)
        if self.head is not None:
            yield from self.head.lines(self.writer, "head")


@dataclass(frozen=True)
class EncoderOnly(Model):
    """Every token sees every token (BERT's shape); `head=None` gives hidden states."""

    encoder: Stack
    head: Head | None = None
    pool: Pool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        no_cross(self, "encoder")
        _head_fits(self)
        if self.pool is None and _pooled(self.head):
            refuse(self, "pool", "is what the head reads", "give pool=Pool()")
        if self.encoder.causal:
            raise ConfigError(
                "EncoderOnly.encoder has causal=True; use DecoderOnly, or causal=False"
            )


@dataclass(frozen=True)
class DecoderOnly(Model):
    """Each token sees the ones before it (GPT's shape)."""

    decoder: Stack
    head: Head | None = LMHead()

    def __post_init__(self) -> None:
        super().__post_init__()
        no_cross(self, "decoder")
        _is_causal(self, self.decoder)
        _head_fits(self)
        _no_pool(self)


@dataclass(frozen=True)
class EncoderDecoder(Model):
    """The original shape: a decoder that looks back at itself and across at the encoder.

    `shared=True`: one embedding table serves encoder and decoder (and, with a tied head, the
    output: the paper's section 3.4). The decoder's first token is `start_id`, by default its
    `Tokens.bos_id`; with `start_last` it is the last token of the labels (mBART's language).
    """

    encoder: Stack
    decoder: Stack
    head: Head | None = LMHead()
    shared: bool = True
    start_id: int | None = None
    start_last: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _head_fits(self)
        _no_pool(self)
        vocab = self.decoder.source.vocab
        if self.start_id is not None and not 0 <= self.start_id < vocab:
            refuse(self, "start_id", f"must be in 0 … {vocab - 1}", "give an id of the vocabulary")
        no_cross(self, "encoder")
        _is_causal(self, self.decoder)
        if self.encoder.causal:
            raise ConfigError(
                "EncoderDecoder.encoder has causal=True; an encoder sees everything: set False"
            )
        if any(block.cross is None for block in self.decoder.blocks):
            raise ConfigError(
                "EncoderDecoder.decoder has a Block with cross=None; "
                "give cross=Attention(...), or use DecoderOnly"
            )
        if self.encoder.dim != self.decoder.dim:
            raise ConfigError(
                f"EncoderDecoder.encoder.dim={self.encoder.dim} differs from "
                f"decoder.dim={self.decoder.dim}; give both the same dim"
            )
        if self.encoder.states != self.decoder.dim:
            raise ConfigError(
                f"EncoderDecoder.encoder gives states of width {self.encoder.states} "
                f"(Stack.flow={type(self.encoder.flow).__name__}), but the decoder looks at "
                f"{self.decoder.dim}; set the encoder's flow=None"
            )
        if self.shared and self.encoder.source.vocab != self.decoder.source.vocab:
            raise ConfigError(
                f"EncoderDecoder.shared=True needs one vocabulary, but the encoder has "
                f"{self.encoder.source.vocab} tokens and the decoder {self.decoder.source.vocab}; "
                f"set shared=False, or train one joint tokenizer"
            )
        if self.shared and self.encoder.source.width != self.decoder.source.width:
            raise ConfigError("EncoderDecoder.shared=True needs one Tokens.width; make them equal")

    @property
    def start(self) -> int | None:
        """The token that the decoder begins with."""
        return self.decoder.source.bos_id if self.start_id is None else self.start_id


def no_cross(owner: Model, slot: str) -> None:
    """Refuse a stack that looks across where there is nothing."""
    if any(block.cross is not None for block in owner.stacks[slot].blocks):
        raise ConfigError(
            f"{type(owner).__name__}.{slot} has a Block with cross-attention but nothing to look "
            f"across at; set cross=None, or use EncoderDecoder"
        )


def _head_fits(owner: Model) -> None:
    stack = owner.writer
    for head in heads_of(owner.head):
        if isinstance(head, LMHead):
            _words_fit(owner, head, stack)
        head.fits(stack)
        if isinstance(head, ClassHead) and head.at == "eos" and stack.source.eos_id is None:
            refuse(owner, "head", 'with at="eos" looks for Tokens.eos_id', "set it")


def _words_fit(owner: Model, head: LMHead, stack: Stack) -> None:
    if not stack.source.vocab:
        must = "gives scores over a vocabulary, but its stack reads no tokens"
        refuse(owner, "head", must, "give the stack source=Tokens(…)")
    if isinstance(stack.source, AdaptiveTokens) and not isinstance(head, AdaptiveHead):
        refuse(owner, "head", "does not know the clusters of its source", "give it AdaptiveHead()")
    if head.tied and stack.width != stack.states and not head.transform:
        must = f"is tied to an embedding of width {stack.width}, but states have {stack.states}"
        refuse(owner, "head", must, "give it transform=Transform(), or tied=False")


def _pooled(head: Head | None) -> bool:
    return any(one.pooled for one in heads_of(head))


def _no_pool(owner: Model) -> None:
    if _pooled(owner.head):
        refuse(owner, "head", 'has at="pool", but only EncoderOnly has a pool', 'try at="last"')


def _is_causal(owner: Model, decoder: Stack) -> None:
    if not decoder.causal:
        raise ConfigError(
            f"{type(owner).__name__}.decoder has causal=False, so it would see the token it has to "
            f"predict; set causal=True"
        )
