"""Synthetic training pairs from a run or another program: distillation and back-translation."""
