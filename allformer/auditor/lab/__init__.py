"""The break-it lab: every bug of the catalogue planted in a small model, next to the right one."""
