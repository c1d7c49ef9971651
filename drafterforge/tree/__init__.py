"""Draft trees: expansion, total order, masks, acceptance; pure functions of tensors."""
