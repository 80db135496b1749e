"""Sections of a training script about recomputation and offloading, as lines of text."""
