"""What the modes have in common that stand in for attention: they are made with a mesh, and called in its place."""

from __future__ import annotations

MADE = """\
    def __init__(self, context: DeviceMesh) -> None:
        super().__init__()
        self.context = context
"""

CALLED = """
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        attends = func is F.scaled_dot_product_attention
        return (self.attention if attends else func)(*args, **kwargs or {})

"""
