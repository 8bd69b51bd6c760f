"""Adapters as PEFT lays them out, both ways: `adapter_config.json`, `adapter_model.safetensors`.

    model = af.load("path/to/adapter")                  # finds its base, or base="path/to/base"
    af.load_adapter(model, "path/to/adapter", name="tales")
    af.save_adapter(model, "out", name="tales")         # which PEFT opens

What PEFT has no words for (BitFit, bottlenecks, a model of no family) is written in the same two
files in our own (`own.py`), bottlenecks also as the `adapters` library has them (`library.py`).
Each kind of adapter is one file, a `Form`.
"""
