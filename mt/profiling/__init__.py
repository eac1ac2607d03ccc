"""How fast a training or a translation is, and what a training will take."""
