"""Training of drafters, tree schedulers and routers with lightning."""
