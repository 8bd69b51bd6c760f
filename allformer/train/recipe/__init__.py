"""A recipe: everything that a training run is, as YAML.

    recipe = read_recipe("recipes/multi30k-en-de.yaml", ["train.steps=500"])

Sections are dataclasses; an unknown key or a wrong type is refused by name with what there is.
"""

from allformer.train.recipe.model import (
    AnyModelRecipe,
    CheckpointModel,
    ModelRecipe,
    PresetRecipe,
    TreeRecipe,
)
from allformer.train.recipe.read import make_recipe, read_override, read_recipe
from allformer.train.recipe.recipe import Recipe
from allformer.train.section import Section, read_section
from allformer.train.recipe.sections import (
    CheckpointTokenizer,
    DecodeRecipe,
    LogRecipe,
    ParallelRecipe,
    TokenizerRecipe,
    TrainRecipe,
)
from allformer.train.recipe.vocabulary import Vocabulary

__all__ = [
    "AnyModelRecipe", "CheckpointModel", "CheckpointTokenizer", "DecodeRecipe", "LogRecipe",
    "ModelRecipe", "ParallelRecipe", "PresetRecipe", "Recipe", "Section", "TokenizerRecipe",
    "TrainRecipe", "TreeRecipe", "Vocabulary", "make_recipe", "read_override", "read_recipe",
    "read_section",
]  # fmt: skip
