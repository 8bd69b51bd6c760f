"""Two towers: a text and an image have one vector, whatever stands beside them and however."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from allformer.core.model import AnyModel
from tests.models import EOS, SPREAD, left_padding, loud, on_the_grid, right_padding, tokens

TOWERS = [name for name in SPREAD if name.startswith("two towers")]
LENGTHS = [9, 4, 1, 6]


def rows() -> list[Tensor]:
    """Texts of these lengths that end in </s>."""
    found = [tokens(1, n, seed)[0] for seed, n in enumerate(LENGTHS)]
    for row in found:
        row[-1] = EOS
    return found


def texts(mask: Tensor) -> Tensor:
    """The texts where the mask has them; padding has ends too, which are none."""
    return torch.full_like(mask, EOS).masked_scatter(mask.bool(), torch.cat(rows()))


def images(count: int = 3) -> Tensor:
    return torch.randn(count, 1, 8, 12, generator=torch.Generator().manual_seed(7)).double()


def alone(model: AnyModel) -> Tensor:
    """The vectors of the texts, each read by itself."""
    return torch.cat([model(input_ids=row[None]).text_embeds for row in rows()])


@pytest.mark.parametrize("name", TOWERS)
@pytest.mark.parametrize("pad", [left_padding, right_padding])
def test_a_text_has_one_vector_with_padding_and_without(name: str, pad) -> None:
    model, mask = loud(SPREAD[name]), pad(LENGTHS, max(LENGTHS))
    if name.endswith("sigmoid") and pad is left_padding:
        return  # it reads the first column, padding or not, as a pooler of BERT's does
    wanted = alone(model)
    packed = model(input_ids=texts(mask), attention_mask=mask).text_embeds
    with on_the_grid():
        grid = model(input_ids=texts(mask), attention_mask=mask).text_embeds
    torch.testing.assert_close(packed, wanted, atol=1e-11, rtol=0)
    torch.testing.assert_close(grid, wanted, atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", TOWERS)
def test_neither_tower_sees_the_other_nor_its_neighbours(name: str) -> None:
    model, mask = loud(SPREAD[name]), right_padding(LENGTHS, max(LENGTHS))
    ids, pixels = texts(mask), images()
    out = model(input_ids=ids, attention_mask=mask, pixel_values=pixels)
    assert out.logits_per_image.shape == (3, 4)
    each = torch.cat([model(pixel_values=x[None]).image_embeds for x in pixels])
    torch.testing.assert_close(out.image_embeds, each, atol=1e-11, rtol=0)
    torch.testing.assert_close(out.text_embeds, alone(model), atol=1e-11, rtol=0)
    cosines = out.text_embeds @ out.image_embeds.T * model.head.scale.exp()
    cosines = cosines if model.head.bias is None else cosines + model.head.bias
    torch.testing.assert_close(out.logits_per_text, cosines, atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", TOWERS)
def test_kernels_and_precisions_agree(name: str) -> None:
    model, mask = loud(SPREAD[name]), right_padding(LENGTHS, max(LENGTHS))
    given = {"input_ids": texts(mask), "attention_mask": mask, "pixel_values": images()}
    wanted = model(**given).logits_per_image
    eager = model(**given, kernel="eager").logits_per_image
    torch.testing.assert_close(eager, wanted, atol=1e-10, rtol=0)
    single = model.float()(**given).image_embeds
    torch.testing.assert_close(single, model(**given).image_embeds, atol=1e-4, rtol=0)
    half = model(**given, dtype=torch.bfloat16).image_embeds
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), single, atol=0.1, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOWERS)
def test_one_graph_holds_both(name: str) -> None:
    model, mask = loud(SPREAD[name]), right_padding(LENGTHS, max(LENGTHS))
    given = {"input_ids": texts(mask), "attention_mask": mask, "pixel_values": images()}
    graph = torch.compile(model, backend="aot_eager", fullgraph=True)
    wanted = model(**given).logits_per_image
    torch.testing.assert_close(graph(**given).logits_per_image, wanted, atol=1e-10, rtol=0)
