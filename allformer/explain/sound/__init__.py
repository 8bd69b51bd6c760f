"""What a model hears, for the report: sounds to play, their spectrograms, attention over them."""
