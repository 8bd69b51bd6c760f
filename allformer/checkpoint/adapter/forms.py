"""The kinds of adapters that PEFT has and we too, by its names and by our methods."""

from __future__ import annotations

from allformer.checkpoint.adapter.form import Form
from allformer.checkpoint.adapter.ia3 import Ia3Form
from allformer.checkpoint.adapter.lora import LoraForm
from allformer.checkpoint.adapter.prefix import PrefixForm
from allformer.checkpoint.adapter.prompt import PromptForm
from allformer.tune.method import Method

FORMS: tuple[Form, ...] = (LoraForm(), Ia3Form(), PrefixForm(), PromptForm())
BY_KIND = {form.kind: form for form in FORMS}
BY_METHOD: dict[type[Method], Form] = {form.method: form for form in FORMS}
