"""Prices: what compute, collectives, memory and schedules cost on a given cluster."""
