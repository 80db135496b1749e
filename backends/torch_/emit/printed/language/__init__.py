"""The dialect of PyTorch: how operators and moves between ranks look in it, and the functions that torch lacks."""
