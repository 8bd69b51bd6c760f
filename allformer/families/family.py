"""What a family is: presets, a reader and a writer of its config.json, and a weight map.

    FAMILY = Family("llama", ARCHITECTURES, USUAL, PRESETS, read, write, weights)

A preset is what the config.json of a published model says, where that is not USUAL: what an absent
field means. `read(fields, architecture, keys)` gives the config tree; `keys` are the names in the
weight files, for facts that config.json leaves open (is there a pooler?). `write(model)` is its
inverse and raises `NotThisFamily` where the tree is not one of this family's.
`weights(model, architecture)` is the map of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from allformer import config
from allformer.errors import CheckpointError
from allformer.families.fields import Fields
from allformer.families.kinds import TEXTS, check_kind
from allformer.families.prompts import Prompts
from allformer.families.weights import WeightMap

Slot = TypeVar("Slot")
# How the names of transformers' classes end, and the kind of head that such a class has.
ENDINGS = {
    "Model": "bare", "EncoderModel": "encoder", "ForPreTraining": "pretrain",
    "ForCausalLM": "words", "LMHeadModel": "words", "WithLMHeadModel": "words", "MTModel": "words",
    "ForMaskedLM": "words", "ForConditionalGeneration": "words",
    "ForSequenceClassification": "class", "ForNextSentencePrediction": "class",
    "ForTokenClassification": "token", "ForQuestionAnswering": "span",
    "ForImageClassification": "class", "ForMaskedImageModeling": "pixels",
    "ForImageClassificationWithTeacher": "teacher", "ForCausalImageModeling": "words",
    "ForObjectDetection": "boxes", "ForMultipleChoice": "choice",
}  # fmt: skip


class NotThisFamily(Exception):
    """The tree cannot be said in this family's config.json; the message says why."""


def head_kind(model: config.Model) -> str:
    """bare, words, class, token, span, choice, pixels, boxes, teacher, pretrain; else its class."""
    head = model.head
    if isinstance(head, config.ClassHead):
        return "token" if head.at == "token" else "class"
    if isinstance(head, config.Several) and [x.name for x in head.parts] == ["words", "pair"]:
        return "pretrain"
    kinds = {
        config.LMHead: "words", config.SpanHead: "span", config.PixelHead: "pixels",
        config.TeacherHead: "teacher", config.BoxHead: "boxes", config.ChoiceHead: "choice",
    }  # fmt: skip
    return "bare" if head is None else kinds.get(type(head), type(head).__name__)


def architectures(name: str, *endings: str) -> dict[str, str]:
    """Class names and their heads: `architectures("Llama", "ForCausalLM", "Model")`."""
    return {name + ending: ENDINGS[ending] for ending in endings}


@dataclass(frozen=True)
class Family:
    """One family; see the top of this file. `architectures` maps transformers' class names to the
    kind of head (`head_kind`); the first of a kind is the one that is written, the first of all
    that of a preset."""

    name: str
    architectures: Mapping[str, str]
    usual: Mapping[str, Any]
    presets: Mapping[str, Mapping[str, Any]]
    read: Callable[[Fields, str, Collection[str]], Any]
    write: Callable[[Any], dict[str, Any]]
    weights: Callable[[Any, str], WeightMap]
    prefix: str = ""  # the base model's name within a model with a head
    same: Callable[[Any], Any] = lambda model: model  # the tree without what no file can say
    kind: Callable[[Any], str] = head_kind
    # Names that may be one table or several: `keys` has those whose numbers are their own, and
    # not the copies that older files hold of a tied table.
    tables: tuple[str, ...] = ()
    fresh: Mapping[str, Any] = field(default_factory=dict)  # for models that had no config.json
    prompts: Prompts = field(default_factory=Prompts)
    tree: type = config.Model  # what it reads and writes: a model's tree, or a codec's
    drop_path: bool = False  # whether config.json says how often paths are dropped, in all layers
    # The preprocessor_config.json of a model that had none, where its tree tells all of it.
    prepares: Callable[[Any], dict[str, Any]] = lambda tree: {}
    # What transformers calls in memory what its files call otherwise, for `re.sub` in this order.
    in_memory: tuple[tuple[str, str], ...] = ()

    def make(self, raw: Mapping[str, Any]) -> Any:
        """A model by the fields of its config.json: `FAMILY.make({"hidden_size": 1024})`."""
        fields = Fields(raw, self.name, self.usual)
        model = self.read(fields, next(iter(self.architectures)), ())
        fields.close()
        return model


def architecture_of(raw: Mapping[str, Any], family: Family) -> str:
    """The class that config.json names; the bare model where it names none."""
    check_kind("architectures", raw.get("architectures"), TEXTS)
    named = (raw.get("architectures") or [next(iter(family.architectures))])[0]
    if named not in family.architectures:
        known = ", ".join(family.architectures)
        raise CheckpointError(
            f"config.json has architectures={[named]}, which is not supported for "
            f"model_type={family.name!r}; supported are {known}"
        )
    return str(named)


def as_told(change: Callable[[config.Stack], config.Stack], model: Any) -> Any:
    """For `Family.same`: each stack changed, and the decoder's first token written out."""
    told: dict[str, Any] = {name: change(stack) for name, stack in model.stacks.items()}
    if isinstance(model, config.EncoderDecoder):
        told["start_id"] = model.start
    return replace(model, **told)


def expect(condition: bool, why: str) -> None:
    """In a writer: this family cannot say that."""
    if not condition:
        raise NotThisFamily(why)


def named(names: str, *values: Any) -> dict[str, Any]:
    """A row of a table of presets: `named("hidden_size num_hidden_layers", 768, 12)`."""
    return dict(zip(names.split(), values, strict=True))


def fit(value: Any, kind: type[Slot], why: str) -> Slot:
    """In a writer: what is in a slot, if it is of the kind that this family has there."""
    expect(isinstance(value, kind), why)
    return value  # type: ignore[no-any-return]


def one(values: Collection[Any], what: str) -> Any:
    """The single value that all layers share; a family cannot say more."""
    different = set(values)
    expect(len(different) == 1, f"its layers differ in {what}")
    return different.pop()
