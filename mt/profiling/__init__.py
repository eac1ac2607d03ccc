"""Cost of a model, and the plan of a training."""
