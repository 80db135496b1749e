"""The sections of a training script, as lines of text; `script` puts them together.

    imports   what the text needs, found in the text
    model     build, parallelize
    batch     batch_of
    step      train_step
    copies    sum_copies
    alike     shard_alike
    clipping  clip
    keeping   save, resume
    entry     load, make_optimizer, start, main

Only what a plan needs is written: a script for data parallelism knows nothing of DTensors.
"""
