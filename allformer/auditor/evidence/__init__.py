"""What several checks look at: the helpers that they share, so that no check imports another."""
