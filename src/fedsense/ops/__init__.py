"""What methods share: losses, averaging, prototypes, contrast between models, control variates."""

from fedsense.ops.averaging import architectures, average, average_for, average_within, size, zeros_of_trained
from fedsense.ops.contrast import classify_and_contrast, model_contrast, seen_by
from fedsense.ops.losses import classify, cross_entropy, proximal
from fedsense.ops.prototypes import (
    Distance,
    class_prototypes,
    keep_known,
    likeness,
    merge_prototypes,
    no_prototypes,
    prototype_contrast,
    prototype_gap,
)
from fedsense.ops.variates import add_changes, corrected, new_variates, trainers, variate_change

__all__ = [
    "Distance",
    "add_changes",
    "architectures",
    "average",
    "average_for",
    "average_within",
    "class_prototypes",
    "classify",
    "classify_and_contrast",
    "corrected",
    "cross_entropy",
    "keep_known",
    "likeness",
    "merge_prototypes",
    "model_contrast",
    "new_variates",
    "no_prototypes",
    "prototype_contrast",
    "prototype_gap",
    "proximal",
    "seen_by",
    "size",
    "trainers",
    "variate_change",
    "zeros_of_trained",
]
