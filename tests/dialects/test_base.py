"""What counts as a base class, and whose methods count as overridden."""

from unittest import mock
from unittest.mock import MagicMock

import pytest

from hookbus import LightningDataModule, LightningModule
from hookbus.callback import Callback
from hookbus.dialects.base import derives_from, is_base, is_marked, options_in, overridden, own_namespaces
from hookbus.markers import hookimpl


class Mine(Callback):
    def on_fit_start(self, trainer, pl_module):
        pass

    @hookimpl(trylast=True)
    def on_fit_end(self):
        pass


def lightning_class(name, module="lightning.pytorch.callbacks.callback", **methods):
    """A class as the real Lightning would define it."""
    for hook, method in methods.items():
        method.__qualname__ = f"{name}.{hook}"
    return type(name, (), {"__module__": module, **methods})


def test_base_classes_are_known_by_name_and_package():
    assert is_base(Callback)
    assert is_base(lightning_class("Callback"))
    assert is_base(lightning_class("LightningModule", "pytorch_lightning.core.module"))
    assert not is_base(Mine)
    assert not is_base(lightning_class("Callback", "my_project.callbacks"))
    assert not is_base(lightning_class("EarlyStopping"))


@pytest.mark.parametrize("base", [Callback, lightning_class("Callback")])
def test_instances_of_either_base_are_callbacks(base):
    assert derives_from(type("Sub", (base,), {})(), "Callback")
    assert not derives_from(type("Sub", (base,), {})(), "LightningModule")


def test_a_mock_with_a_spec_counts_as_what_it_stands_for():
    assert derives_from(MagicMock(spec=Callback), "Callback")
    assert not derives_from(MagicMock(), "Callback")


def test_overridden_methods():
    callback = Mine()
    assert overridden(callback, "on_fit_start") == callback.on_fit_start
    assert overridden(callback, "on_train_start") is None
    assert overridden(callback, "no_such_method") is None
    callback.on_train_start = function = lambda trainer, pl_module: None
    assert overridden(callback, "on_train_start") is function
    callback.on_train_end = None
    assert overridden(callback, "on_train_end") is None


def test_methods_of_a_mixin_are_overridden_ones():
    class Mixin:
        def on_train_start(self, trainer, pl_module):
            pass

    assert overridden(type("Mixed", (Mixin, Callback), {})(), "on_train_start") is not None


def test_a_method_of_the_real_lightnings_base_is_not_overridden():
    base = lightning_class("Callback", on_fit_start=lambda self, trainer, pl_module: None)
    sub = type("Sub", (base,), {"on_fit_end": lambda self, trainer, pl_module: None})()
    assert overridden(sub, "on_fit_start") is None
    assert overridden(sub, "on_fit_end") is not None


def test_options_are_inherited_from_the_nearest_marked_method():
    class Child(Mine):
        def on_fit_end(self, trainer, pl_module):
            pass

    class Grandchild(Child):
        @hookimpl(tryfirst=True)
        def on_fit_end(self):
            pass

    assert options_in(own_namespaces(Child()), "on_fit_end")["trylast"]
    assert options_in(own_namespaces(Grandchild()), "on_fit_end")["tryfirst"]
    assert not options_in(own_namespaces(Grandchild()), "on_fit_end")["trylast"]
    assert options_in(own_namespaces(Mine()), "on_fit_start") == {}


def test_a_method_assigned_to_the_instance_inherits_and_may_be_marked_itself():
    callback = Mine()
    callback.on_fit_end = lambda trainer, pl_module: None
    assert options_in(own_namespaces(callback), "on_fit_end")["trylast"]
    assert not is_marked(callback, "on_fit_end")
    callback.on_fit_end = hookimpl(tryfirst=True)(lambda: None)
    assert options_in(own_namespaces(callback), "on_fit_end")["tryfirst"]
    assert is_marked(callback, "on_fit_end")


def test_only_the_method_itself_carries_a_mark():
    class Child(Mine):
        def on_fit_end(self, trainer, pl_module):
            pass

    assert is_marked(Mine(), "on_fit_end")
    assert not is_marked(Child(), "on_fit_end")
    assert not is_marked(Mine(), "on_fit_start")


@pytest.mark.parametrize("autospec", [True, False])
@pytest.mark.parametrize("base", [Callback, LightningModule, LightningDataModule])
def test_a_method_that_was_put_in_the_place_of_a_base_classs_own_counts(base, autospec):
    class Mine(base):
        pass

    assert overridden(Mine(), "setup") is None
    with mock.patch.object(base, "setup", autospec=autospec):
        assert overridden(Mine(), "setup") is not None
    assert overridden(Mine(), "setup") is None
