"""Every layer that Flax Linen, Flax NNX and Equinox ship, each in a small model of its own: a factory by its name.

    plan inspect benchmarks/jax_layers/linen.py:LSTMCell

A model embeds tokens, adds to each what the layer makes of them, twice, and tells the token that follows. Layers of
images see the sequence as rows of pixels. No one here chose which layers: a file lists what is left out, and why.
"""
