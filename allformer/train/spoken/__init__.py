"""What an objective over recordings and their texts is made of."""
