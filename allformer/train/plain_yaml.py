"""YAML as plain dicts, lists and numbers; a key that stands twice is refused."""

from __future__ import annotations

from typing import Any

from allformer.errors import ConfigError


def read_yaml(text: str, where: str, way_out: str = "mend it") -> Any:
    """`read_yaml("steps: 5", "recipe.yaml")` → `{"steps": 5}`."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """yaml takes the last of two like keys without a word."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise ConfigError(
                        f"{where}, line {line}: {key.value} stands there twice; keep one of them"
                    )
                seen.add(str(key.value))
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)  # a SafeLoader: data alone
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        said = problem or " ".join(str(error).split())
        raise ConfigError(f"{where} is not YAML{line}: {said}; {way_out}") from None
