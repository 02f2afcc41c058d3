"""What methods share: losses, averaging, prototypes, alignment with anchors, contrast of models, control variates."""

from fedsense.ops.alignment import (
    Averaging,
    barycentre,
    between_means,
    bures,
    class_weights,
    draw,
    mmd,
    transport,
    wasserstein,
)
from fedsense.ops.averaging import architectures, average, average_for, average_within, size, zeros_of_trained
from fedsense.ops.contrast import classify_and_contrast, model_contrast, seen_by
from fedsense.ops.losses import classify, cross_entropy, proximal, task_loss
from fedsense.ops.prototypes import (
    Distance,
    class_prototypes,
    classify_and_align,
    held_only,
    keep_known,
    likeness,
    merge_prototypes,
    no_prototypes,
    prototype_contrast,
    prototype_gap,
    with_absent,
)
from fedsense.ops.simplex import least_on_simplex
from fedsense.ops.variates import add_changes, corrected, new_variates, trainers, variate_change

__all__ = [
    "Averaging",
    "Distance",
    "add_changes",
    "architectures",
    "average",
    "average_for",
    "average_within",
    "barycentre",
    "between_means",
    "bures",
    "class_prototypes",
    "class_weights",
    "classify",
    "classify_and_align",
    "classify_and_contrast",
    "corrected",
    "cross_entropy",
    "draw",
    "held_only",
    "keep_known",
    "least_on_simplex",
    "likeness",
    "merge_prototypes",
    "mmd",
    "model_contrast",
    "new_variates",
    "no_prototypes",
    "prototype_contrast",
    "prototype_gap",
    "proximal",
    "seen_by",
    "size",
    "task_loss",
    "trainers",
    "transport",
    "variate_change",
    "wasserstein",
    "with_absent",
    "zeros_of_trained",
]
