"""Weights on disk, and the run directories that training leaves behind."""
