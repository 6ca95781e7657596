"""The keys of a checkpoint: Lightning's, which every tool knows, and hookbus's own, under one key of its own.

::

    epoch, global_step, pytorch-lightning_version
    state_dict                      the module's weights
    loops                           Lightning's counters, for resuming there
    callbacks                       the plugins' states, by state_key
    optimizer_states, lr_schedulers, MixedPrecision
    hyper_parameters, hparams_name  and datamodule_…
    hookbus                         format_version, versions, progress, plugins, settings; and for resuming filters, control,
                                    decisions of callbacks, and for each rank its place in the run

Nothing here needs torch.
"""

from __future__ import annotations

from typing import Final

#: Raised when an older hookbus would misread a file.
FORMAT_VERSION: Final = 1
#: The Lightning release whose checkpoint keys are written.
LIGHTNING_VERSION: Final = "2.6.6"
#: Whatever users passed to their modules; resuming needs none of it.
HYPER_PARAMETERS: Final = (
    *("hyper_parameters", "hparams_name", "hparams_type"),
    *("datamodule_hyper_parameters", "datamodule_hparams_name", "datamodule_hparams_type"),
)
