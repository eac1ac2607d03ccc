"""Synthetic training pairs from a trained model: back-translation and distillation."""
