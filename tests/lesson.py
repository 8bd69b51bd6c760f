"""The lesson's NumPy Transformer as a module: it stands in docs/, outside every package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PATH = Path(__file__).parents[1] / "docs" / "lessons" / "numpy_transformer.py"


def load() -> ModuleType:
    """`numpy_transformer`, imported once."""
    name = "numpy_transformer"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, PATH)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
