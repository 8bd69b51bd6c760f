"""Training: recipe → data → batches → step → loop, with everything needed to stop and go on."""
