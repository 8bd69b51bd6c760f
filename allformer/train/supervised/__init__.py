"""What the objectives with labels share: records, labels, packed texts, a pass over a set."""
