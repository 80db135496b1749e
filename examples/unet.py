"""A small U-Net with batch normalisation: skips that cross the whole model, and buffers that training updates.

    plan inspect examples/unet.py:small

It stands here for what decoders lack: values that live from the first level to the last, several unlike blocks, and a
layer (batch normalisation) whose result depends on which samples share a batch, so that micro-batches would change what
is trained.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ConvBlock(nn.Module):
    """Twice: 3x3 convolution, batch normalisation, ReLU."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    def __init__(self, channels_in: int, classes: int, width: int, levels: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.down = nn.ModuleList(ConvBlock(a, b) for a, b in zip([channels_in, *widths], widths[:-1], strict=False))
        self.bottom = ConvBlock(widths[-2], widths[-1])
        self.upsample = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.up = nn.ModuleList(ConvBlock(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        x, skips = image, []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for upsample, block in zip(self.upsample, self.up, strict=True):
            x = block(torch.cat((skips.pop(), upsample(x)), dim=1))
        return self.head(x)


def tiny() -> UNet:
    return UNet(channels_in=3, classes=4, width=8, levels=2)


def small() -> UNet:
    return UNet(channels_in=3, classes=21, width=64, levels=4)


dims = {"image": ("b", "channels", "h", "w"), "labels": ("b", "h", "w")}


def example_inputs(batch: int, seq: int) -> dict[str, Tensor]:
    """Square images; `seq` is their side, rounded up to a multiple of 16 so that four poolings divide it."""
    side = -(-seq // 16) * 16
    return {"image": torch.rand(batch, 3, side, side), "labels": torch.randint(0, 4, (batch, side, side))}


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross entropy over pixels."""
    return F.cross_entropy(outputs, batch["labels"])
