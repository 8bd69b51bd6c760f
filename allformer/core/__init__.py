"""The core: what a config tree says, computed."""

from allformer.core import two_towers  # noqa: F401  (registers it: no other module names it)
