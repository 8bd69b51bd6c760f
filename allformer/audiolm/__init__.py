"""Sound as a language (AudioLM, Borsos et al., 2022): units, codes, and what goes on from them."""
