"""What methods share: losses, averaging."""

from fedsense.ops.averaging import average, size
from fedsense.ops.losses import classify, cross_entropy, proximal

__all__ = ["average", "classify", "cross_entropy", "proximal", "size"]
