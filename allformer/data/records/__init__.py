"""Records of any format: one small file a format, each registers itself.

>>> from allformer.data.records import open_records
>>> for record in open_records("corpus/*.jsonl.gz", columns={"text": "body"}): ...
"""

from allformer.data.records import conll, csv, hub, parquet, squad, text
from allformer.data.records import jsonl as jsonl  # after squad: both read .json
from allformer.data.records.format import FORMATS, Record
from allformer.data.records.held_out import hold_out
from allformer.data.records.open import Splits, open_records, open_splits
from allformer.data.records.records import Pass, Records, Source, spot

__all__ = [
    "FORMATS",
    "Pass",
    "Record",
    "Records",
    "Source",
    "Splits",
    "conll",
    "csv",
    "hold_out",
    "hub",
    "jsonl",
    "open_records",
    "open_splits",
    "parquet",
    "spot",
    "squad",
    "text",
]  # fmt: skip
