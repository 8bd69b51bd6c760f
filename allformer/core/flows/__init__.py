"""Flows: how sub-layers are joined. One file each; a new file registers itself."""

from allformer.core.registry import import_all

import_all(__name__, __path__)
