"""Where hookbus differs from Lightning on purpose, and why; ``record.py --intended`` writes down how."""

from __future__ import annotations

_INTERRUPT = "Ctrl-C leaves as KeyboardInterrupt, which callers and notebooks can catch, and not as SystemExit"
_STOP_ITERATION = "a StopIteration in user code is an error, and not a silent end of the epoch"
_ON_EXCEPTION = (
    "whatever fails while an exception is handled neither hides that exception nor keeps others from hearing of it"
)
_REFUSED = "what can be seen before the run is refused before the run"
_OWN_TYPE = "a misconfiguration is a MisconfigurationException"
_NOT_LOST = (
    "what was still to be done after the batch that was saved is done first: its validation, the end of its epoch"
)
_EMPTY_EPOCH = "a run that goes on after a whole epoch begins the next one, without an empty epoch before it"

_UNSEEN = (
    "a run that goes on inside an epoch goes on with the batches it has not seen, and not with the first ones again"
)
_UNFINISHED = "what the module still had to do in the hook in which the checkpoint was saved is done first"
_LOGGED = "what had been logged before the checkpoint is known after it"

#: Reasons by the name of the scenario.
REASONS = {
    "fit_another_module": "another module starts its own count of epochs and steps, and is trained",
    "fit_again_after_KeyboardInterrupt_at_batch_0": _INTERRUPT,
    "fit_again_after_KeyboardInterrupt_at_batch_1": _INTERRUPT,
    "validate_without_step": _REFUSED,
    "test_without_step": _REFUSED,
    "predict_empty": "nothing predicted is an empty list; None means that the predictions were not wanted",
    "step_returns_vector": "a loss of more than one element is refused at once, with its shape",
    "stream_limited_beyond_its_end": "a stream that ends before the limit ends its epoch: schedulers step, it is validated",
    "accumulate_changed_by_callback_in_an_epoch": "a window is counted from the optimiser's last step, so that none is cut or "
    "begins with old gradients",
    "batch_of_none_accumulating": "a batch of None does not clear the gradients of its window",
    "two_optimizers_are_refused": _OWN_TYPE,
    "two_dictionaries_are_refused": _OWN_TYPE,
    "manual_with_clipping_is_refused": _REFUSED,
    "manual_with_accumulation_is_refused": _REFUSED,
    "early_stopping_at_the_end_of_training_epochs": "EarlyStopping asks for the stop only when min_epochs permits it",
    "checkpoint_of_everything": "last.ckpt is the newest state, also where the monitored value is worse than before",
    "stop_iteration_in_training_step": _STOP_ITERATION,
    "stop_iteration_in_validation_step": _STOP_ITERATION,
    "stop_iteration_in_callback": _STOP_ITERATION,
    "keyboard_interrupt_in_training_step": _INTERRUPT,
    "keyboard_interrupt_in_validation": _INTERRUPT,
    "keyboard_interrupt_in_sanity_check": _INTERRUPT,
    "keyboard_interrupt_in_callback": _INTERRUPT,
    **{
        f"{what}_in_{step}_of_{entry}": reason
        for what, reason in (("keyboard_interrupt", _INTERRUPT), ("stop_iteration", _STOP_ITERATION))
        for entry, step in (("validate", "validation_step"), ("test", "test_step"), ("predict", "predict_step"))
    },
    "error_in_on_exception": _ON_EXCEPTION,
    "error_in_on_exception_of_interrupt": _ON_EXCEPTION,
    "error_in_on_exception_of_datamodule": _ON_EXCEPTION,
    "error_in_finalize_of_logger": _ON_EXCEPTION,
    "error_in_save_of_logger": _ON_EXCEPTION,
    "sigterm_in_sanity_check": "SIGTERM ends the sanity check, too",
    "resume_saved_in_last_train_batch_end": _NOT_LOST,
    "resume_where_validation_was_due": f"{_NOT_LOST}; {_UNSEEN}",
    "resume_saved_in_validation_start": _NOT_LOST,
    "resume_saved_in_train_batch_end_with_logger": f"the values of the batch that was saved are logged; {_UNSEEN}",
    "resume_saved_in_validation_end": _UNFINISHED,
    "resume_saved_in_train_batch_end": f"{_UNSEEN}; {_UNFINISHED}",
    "resume_saved_in_train_batch_end_plain": f"{_UNSEEN}; {_UNFINISHED}",
    "resume_saved_in_train_batch_end_of_the_second_epoch": f"{_UNSEEN}; {_UNFINISHED}",
    "resume_saved_in_validation_end_inside_an_epoch": f"{_UNSEEN}; {_UNFINISHED}",
    "resume_saved_in_validation_end_with_logger": f"{_UNSEEN}; {_UNFINISHED}",
    "resume_saved_in_train_epoch_end_by_steps": _UNSEEN,
    "resume_saved_on_an_error": _UNSEEN,
    "resume_inside_a_window": _UNSEEN,
    "resume_after_max_steps": _UNSEEN,
    "resume_after_max_steps_accumulating": _UNSEEN,
    "resume_after_max_steps_at_the_end_of_an_epoch": _EMPTY_EPOCH,
    "resume_steps_then_epochs": f"{_EMPTY_EPOCH}; {_LOGGED}",
    "resume_when_nothing_is_left": _LOGGED,
    "resume_of_weights_only": "a checkpoint of weights alone is refused with the reason, before its counters are taken over",
}
