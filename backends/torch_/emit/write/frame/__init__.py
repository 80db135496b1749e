"""Sections of a training script that every script has, as lines of text."""
