"""The torch backend: DTensor, FSDP2 and `torch.distributed.pipelining`. So far it declares what it can do
(`capabilities`)."""
