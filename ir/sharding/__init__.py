"""Sharding: how tensors lie on meshes, and what operators make of that.

| module | what it has |
|---|---|
| `mesh` | named axes over the ranks of a stage |
| `layouts` | how one dimension is cut into parts |
| `placement` | how one tensor lies on a mesh |
| `adjoint` | a choice per mesh axis → the states of every operand and result, forward and backward |
| `reshard` | the cheapest collectives from one placement to another |
| `rewrite` | what lowering derives from a graph alone, shared by all plans |
| `rank_classes` | the ranks of a stage by the sizes of their shards |
| `shares` | unequal shares of the batch, and of what is stored |
"""
