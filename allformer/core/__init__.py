"""The core: what a config tree says, computed."""

from allformer.core import set_decoder, two_towers  # noqa: F401  (registers them)
