"""Writing with a model: search over its next-token probabilities, and translating with it."""
