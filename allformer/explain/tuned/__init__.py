"""What the report shows of a run that tuned a model: what was trained, and what came of it."""
