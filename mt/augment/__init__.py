"""Synthetic training pairs from a run or another program: back-translation and distillation."""
