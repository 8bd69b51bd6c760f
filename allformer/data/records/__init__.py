"""Records of any format: one small file a format, each registers itself.

>>> from allformer.data.records import open_records
>>> for record in open_records("corpus/*.jsonl.gz", columns={"text": "body"}): ...
"""

# In this order a .json file is asked what it is: SQuAD's, an array, or lines.
from allformer.data.records import squad as squad  # isort: skip
from allformer.data.records import jsonl as jsonl  # isort: skip
from allformer.data.records import conll as conll
from allformer.data.records import csv as csv
from allformer.data.records import hub as hub
from allformer.data.records import parquet as parquet
from allformer.data.records import text as text
from allformer.data.records.format import FORMATS, Record
from allformer.data.records.held_out import hold_out
from allformer.data.records.open import Splits, open_records, open_splits
from allformer.data.records.records import Pass, Records, Source

__all__ = [
    "FORMATS",
    "Pass",
    "Record",
    "Records",
    "Source",
    "Splits",
    "hold_out",
    "open_records",
    "open_splits",
]
