"""Lightning modules and everything they need: the only room that imports lightning."""
