"""What the objectives over preferences share: pairs as ids, log-probabilities of answers, the
reference, the losses."""
