"""The sections of a recipe, one file each: dataclasses that say what they refuse."""
