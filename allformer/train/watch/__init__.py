"""Watching a run: how fast, how near the chip's limit, what each layer does, what goes wrong."""
