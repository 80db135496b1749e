"""Hosts with links of chosen rates on one machine: network namespaces, for what cannot be bought for a test.

| module | what it has |
|---|---|
| `hosts` | namespaces on a bridge, each with the rate of its adapter |
"""
