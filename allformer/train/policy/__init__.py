"""On-policy training: a model answers, its answers are judged, and it learns from the verdict."""
