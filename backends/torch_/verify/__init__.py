"""torch as the oracle: local kernels for the reference interpreter, and simulated plans held against autograd.

    eager      every kind of operator as torch runs it, on whole tensors
    kernels    the same on one device's shards, told which global ranges they are
    simulate   torch as the interpreter's tensor library
    compare    a body under a plan on simulated devices, against autograd on the whole graph
    rules      a user's registered rule, split in every way that it allows

`eager` and autograd share nothing with the rules and the lowering that they judge.
"""
