"""A trained model made longer: windows instead of full attention, and more positions.

    model = lengthen(load("FacebookAI/roberta-base"), 4096, Window(512, 512))
    save(model, "out")                                   # transformers' Longformer opens it

As Longformer's authors did (Beltagy et al., 2020, section 5): the table of positions is copied
until it is long enough, and what global tokens are projected by starts as what all others are. A
text within one window gets the numbers that it got before; training on long texts does the rest.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from allformer.checkpoint.transfer import own_state, put
from allformer.config import EncoderOnly, Learned, Mixer, Model, Tokens, Window
from allformer.config.longer import longer
from allformer.core.linear import Fused
from allformer.core.model import AnyModel, build
from allformer.core.provenance import Provenance
from allformer.errors import CheckpointError, ConfigError
from allformer.families.config_json import write_config

WINDOW = Window(512, 512)


def lengthen(
    model: AnyModel, length: int, mixer: Mixer = WINDOW, separator: int | None = None
) -> AnyModel:
    """A copy for `length` tokens: `lengthen(load("roberta-base"), 4096, Window(512, 512))`.

    A RoBERTa or BERT becomes a Longformer, a BART a LED, a LLaMA what Mistral is, a GPT-2 the same
    with windows (which our own layout can say). What looks back alone takes a window's `left`.
    `separator` is the id of the token between a question and its text, for heads of a Longformer
    that mark the question, where the model's config does not say it, as BERT's do not.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model={str(model)[:60]!r} is no model; try af.lengthen(af.load(…), {length!r})"
        )
    _check_plain(model)
    tree = _parted(longer(model.config, length, mixer), separator)
    new = build(tree, device="meta")
    state = own_state(new)
    carried = _carried(model, new, state)
    put(new, {id(state[name]): x.detach().clone() for name, x in carried.items()})
    new.provenance = _provenance(model, tree)
    return new.train(model.training)


def _parted(tree: Model, separator: int | None) -> Model:
    """The tree whose tokens say what stands between a question and its text, if nothing did."""
    if separator is None or not isinstance(tree, EncoderOnly):
        return tree
    source = tree.encoder.source
    if not isinstance(source, Tokens) or source.eos_id is not None:
        return tree
    return replace(tree, encoder=replace(tree.encoder, source=replace(source, eos_id=separator)))


def _check_plain(model: AnyModel) -> None:
    for path, module in model.named_modules():
        if getattr(module, "delta", None) is not None:
            raise ConfigError(
                f"{path} has a delta beside its weight (an adapter), which would be lost; merge it "
                f"into the weights, then lengthen"
            )


def _carried(model: AnyModel, new: AnyModel, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A tensor for each name of the new model, from the old one's."""
    old = own_state(model)
    made = {**_positions(model, new), **_projections(model, new)}
    if "head.dense.weight" not in old and "pool.dense.weight" not in state:  # see `longer`
        made |= {f"head.{n}": old[f"pool.{n}"] for n in _DENSE if f"pool.{n}" in old}
    found = {name: made[name] if name in made else old.get(name) for name in state}
    for name, x in found.items():
        if x is None or x.shape != state[name].shape:
            raise ConfigError(
                f"mixer={next(iter(new.config.stacks.values())).blocks[0].attention.mixer!r} needs "
                f"{name} {tuple(state[name].shape)}, which the trained model does not have; take "
                f"one without tensors of its own, such as Window(512, 512)"
            )
    return {name: x for name, x in found.items() if x is not None}


_DENSE = ("dense.weight", "dense.bias")


def _positions(model: AnyModel, new: AnyModel) -> dict[str, Tensor]:
    """Tables of positions: the old rows again and again, as many as there are places."""
    found: dict[str, Tensor] = {}
    for name, stack in new.config.stacks.items():
        old, place = model.config.stacks[name], f"{name}.source.position.weight"
        if isinstance(stack.position, Learned) and isinstance(old.position, Learned):
            table = model.get_parameter(place)
            found[place] = _cycled(table, old.position, stack.position)
    return found


def _cycled(table: Tensor, old: Learned, new: Learned) -> Tensor:
    """Row `offset` + i is that of place i modulo the old length; of the rows before, where padding
    looks, the last are kept, and others are zero."""
    places = torch.arange(new.length, device=table.device) % old.length
    kept = min(old.offset, new.offset)
    before = table.new_zeros(new.offset, table.shape[1])
    before[new.offset - kept :] = table[old.offset - kept : old.offset]
    return torch.cat([before, table[old.offset + places]])


def _projections(model: AnyModel, new: AnyModel) -> dict[str, Tensor]:
    """Fused projections, part by part: `q_global` is `q` where there was none."""
    found: dict[str, Tensor] = {}
    for path, module in new.named_modules():
        if not isinstance(module, Fused):
            continue
        old = model.get_submodule(path)
        if not isinstance(old, Fused):  # quantised, or otherwise replaced
            raise ConfigError(f"{path} is a {type(old).__name__}: lengthen the model before that")
        if list(old.parts) == list(module.parts):
            continue
        sources = [n if n in old.parts else n.removesuffix("_global") for n in module.parts]
        if any(name not in old.parts for name in sources):
            continue  # missed by its shape
        parts = [old.part(name) for name in sources]
        found[f"{path}.weight"] = torch.cat([weight for weight, _ in parts])
        biases = [bias for _, bias in parts if bias is not None]
        if biases:
            found[f"{path}.bias"] = torch.cat(biases)
    return found


def _provenance(model: AnyModel, tree: Model) -> Provenance:
    """The family that can say it now; none, where only our own layout can."""
    known = model.provenance
    try:
        found = write_config(tree, known)[1]
    except CheckpointError:
        found = Provenance()
    found.generation = known.generation
    return found
