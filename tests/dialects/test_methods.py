"""Reading methods again gives what reading them anew would, whatever has changed in between."""

import gc
import weakref

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hookbus import Callback, hookimpl
from hookbus.dialects import SignatureMismatchError, methods

ARGUMENTS = {
    "on_fit_start": ("trainer", "pl_module"),
    "on_fit_end": ("trainer", "pl_module"),
    "training_step": ("batch", "batch_idx", "dataloader_idx"),
}
MANNER = methods.Manner((*ARGUMENTS, "on_train_end"))


def described(obj, arguments=ARGUMENTS, manner=MANNER, **options):
    made = methods.implementations(obj, manner, arguments, **options)
    return [(one.hook, one.args, one.options, one.silent, one.function) for one in made]


def anew(obj, *args, **options):
    methods._known.pop(type(obj), None)
    return described(obj, *args, **options)


def names_one(self, pl_module):
    """Takes one argument by name."""


def takes_two(self, a, b):
    """Takes both."""


def marked(self, trainer):
    """Is left to the native dialect."""


marked = hookimpl(marked)
FUNCTIONS = (names_one, takes_two, marked, None)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["class", "base", "object"]),
        st.sampled_from(["on_fit_start", "on_fit_end", "on_train_end", "training_step"]),
        st.sampled_from(FUNCTIONS),
    ),
    max_size=8,
)


@given(CHANGES)
@example([("class", "on_fit_start", names_one), ("base", "on_fit_start", marked)])
def test_after_any_change_the_methods_are_read_as_if_for_the_first_time(changes):
    class Base(Callback):
        pass

    class Derived(Base):
        pass

    obj, places = Derived(), {"class": Derived, "base": Base}
    for place, hook, function in changes:
        described(obj)
        target = places.get(place, obj)
        if function is not None:
            setattr(target, hook, function.__get__(obj) if target is obj else function)
        elif hook in vars(target):
            delattr(target, hook)
        assert described(obj) == anew(obj)


def test_other_arguments_are_heeded():
    class Step:
        def training_step(self, batch, *args):
            pass

    obj, fewer = Step(), {"training_step": ("batch",)}
    assert described(obj)[0][1] == ("batch", "batch_idx", "dataloader_idx")
    assert described(obj, spare=("dataloader_idx",))[0][1] == ("batch", "batch_idx")
    assert described(obj, fewer)[0][1] == ("batch",)
    assert described(obj, {}) == []
    assert described(obj)[0][1] == ("batch", "batch_idx", "dataloader_idx")


def test_a_second_object_gets_methods_of_its_own():
    class Step:
        def training_step(self, batch, batch_idx, dataloader_idx):
            return self

    first, second = Step(), Step()
    assert [made[-1](1, 2, 3) for made in described(first)] == [first]
    assert [made[-1](1, 2, 3) for made in described(second)] == [second]


def test_what_is_found_by_getattr_is_never_taken_for_that_of_another_object():
    class Lookup:
        def __init__(self, function):
            self.function = function

        def __getattr__(self, name):
            if name == "training_step" and self.function is not None:
                return self.function
            raise AttributeError(name)

    assert described(Lookup(None)) == []
    assert [made[0] for made in described(Lookup(lambda batch: None))] == ["training_step"]
    assert described(Lookup(None)) == []


def test_a_method_that_does_not_fit_is_refused_every_time():
    class Step:
        def training_step(self, *, keyword):
            pass

    for _ in range(2):
        with pytest.raises(SignatureMismatchError, match=r"Step\.training_step takes the keyword-only"):
            described(Step())


def test_classes_are_not_kept_alive():
    class Base(Callback):
        def on_fit_start(self, trainer, pl_module):
            pass

    class Derived(Base):
        def on_fit_start(self, trainer, pl_module):
            super().on_fit_start(trainer, pl_module)  # so that the function knows its class

    described(Derived())
    seen = weakref.ref(Derived)
    del Derived
    gc.collect()
    assert seen() is None
