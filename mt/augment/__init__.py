"""Training pairs that a trained model makes: back-translation and distillation."""
