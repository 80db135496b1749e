"""Decoders as wide as real ones with few layers, whose steps fill the memory of eight small TPUs: blocks in a loop, or
written out."""

from examples.jax_llama import LlamaConfig, Model, dims, example_inputs, loss, model, optimizer

__all__ = ["dims", "example_inputs", "loop_of_6", "loop_of_24", "loss", "optimizer", "wide_loop_of_4", "written_out_8"]


def _decoder(layers: int, *, scan: bool, width: int = 4096) -> Model:
    config = LlamaConfig(vocab=32_000, width=width, ffn=3 * width + width // 2, layers=layers, heads=32, kv_heads=8)
    return model(config, scan=scan)


def loop_of_6() -> Model:
    return _decoder(6, scan=True)


def loop_of_24() -> Model:
    return _decoder(24, scan=True)


def wide_loop_of_4() -> Model:
    return _decoder(4, scan=True, width=8192)


def written_out_8() -> Model:
    return _decoder(8, scan=False)
