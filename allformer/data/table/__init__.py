"""Tables: what the objectives read, tokenised once and memory-mapped.

>>> from allformer.data.table import Table, build_table
"""

from allformer.data.table.build import build_table
from allformer.data.table.column import Column, Texts
from allformer.data.table.encode import Encode
from allformer.data.table.table import Table

__all__ = ["Column", "Encode", "Table", "Texts", "build_table"]
