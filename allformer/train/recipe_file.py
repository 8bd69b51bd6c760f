"""A recipe's file as text, or what stands there instead and where recipes are."""

from __future__ import annotations

from pathlib import Path

from allformer.errors import ConfigError, did_you_mean

ENDINGS = (".yaml", ".yml")
SHIPPED = Path("recipes")  # beside the library, where it was cloned


def recipe_text(path: Path) -> str:
    """`recipe_text(Path("recipes/sst2-bert.yaml"))`."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"recipe {path} is not there; {_near(path)}") from None
    except IsADirectoryError:
        own = path / "recipe.yaml"
        way_out = str(own) if own.is_file() else "a .yaml file"
        raise ConfigError(f"recipe {path} is a directory; give {way_out}") from None
    except OSError as error:
        raise ConfigError(f"recipe {path} cannot be read: {error.strerror}; check it") from None
    except UnicodeDecodeError:
        raise ConfigError(f"recipe {path} is no text in UTF-8; {way_out_of(path)}") from None


def way_out_of(path: Path) -> str:
    """What to do about a file that is no recipe."""
    if path.suffix in ENDINGS:
        return "mend the file"
    return "give a recipe, a .yaml file: data is named in it, as data.path, or by --data"


def _near(path: Path) -> str:
    """The recipe that is perhaps meant, here or among those that came with the library."""
    there = [x for folder in (path.parent, SHIPPED) for x in sorted(folder.glob("*.y*ml"))]
    names = {name: x for x in reversed(there) for name in (x.name, x.stem)}
    found = names.get(path.name) or next(
        (x for name, x in names.items() if did_you_mean(path.name, [name])), None
    )
    return f"did you mean {found}?" if found else "give the path of a .yaml file"
