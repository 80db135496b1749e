"""Recognising what a model wrote out: a graph in, the same graph in fewer operators out.

| module | what it recognises |
|---|---|
| `recognised` | all of it, in one sweep |
| `rewriting` | how a pattern is looked up and replaced; reductions that keep dimensions, means, casts there and back |
| `sharing` | what is computed twice alike, computed once |
| `strides` | which views copy, after operators were replaced |
| `activations` | softmax, log-softmax, log-sum-exp, SiLU, GELU, biases of linear layers |
| `norms` | RMS norm and layer norm, with weight and bias |
| `losses` | cross entropy of classes, also averaged over those that count |
| `attention` | softmax between two products, with its mask and scale |

A composite is recognised by what it computes, never by a name. It matters where the composite can be split and its
parts cannot (keys of attention, the vocabulary of a loss), and for what is kept for the backward pass.
"""
