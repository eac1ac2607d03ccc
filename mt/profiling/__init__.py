"""Speed of training and decoding, cost of a model, and the plan of a training."""
