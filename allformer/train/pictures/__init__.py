"""What the objectives over pictures have in common: their data, in one size, and their model."""
