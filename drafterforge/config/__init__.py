"""Every configuration key as a typed value; Hydra's grammar on the outside; a mistake is one line."""
