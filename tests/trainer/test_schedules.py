"""What configure_optimizers may return, and when schedulers step."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from hookbus.errors import MisconfigurationException
from hookbus.trainer.schedules import LRSchedulerConfig, MockOptimizer, due, monitored_value, parse


@pytest.fixture
def optimizer():
    return SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def schedulers(answer):
    return parse(answer, automatic=True)[1]


# -- accepted forms ----------------------------------------------------------------------------------------------------


def test_all_forms_of_one_optimizer_mean_the_same(optimizer):
    forms = [
        optimizer,
        [optimizer],
        (optimizer,),
        {"optimizer": optimizer},
        [{"optimizer": optimizer}],
        ([optimizer], []),
    ]
    for form in forms:
        assert parse(form, automatic=True) == ([optimizer], [])


def test_all_forms_of_a_scheduler_mean_the_same(optimizer):
    scheduler = StepLR(optimizer, 1)
    forms = [
        ([optimizer], [scheduler]),
        ([optimizer], scheduler),
        ([optimizer], [{"scheduler": scheduler}]),
        {"optimizer": optimizer, "lr_scheduler": scheduler},
        {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler}},
        [{"optimizer": optimizer, "lr_scheduler": scheduler}],
    ]
    for form in forms:
        assert schedulers(form) == [LRSchedulerConfig(scheduler, interval="epoch", frequency=1)]


def test_several_optimizers_keep_their_order_and_schedulers(optimizer):
    other = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.2)
    second = StepLR(other, 2)
    found, configs = parse(
        [{"optimizer": optimizer}, {"optimizer": other, "lr_scheduler": {"scheduler": second, "interval": "step"}}],
        automatic=False,
    )
    assert found == [optimizer, other]
    assert [(c.scheduler, c.interval) for c in configs] == [(second, "step")]
    assert parse((optimizer, other), automatic=False)[0] == [optimizer, other]


def test_options_of_a_scheduler_arrive(optimizer):
    scheduler = StepLR(optimizer, 1)
    options = {"scheduler": scheduler, "interval": "step", "frequency": 3, "name": "decay", "strict": False}
    (config,) = schedulers({"optimizer": optimizer, "lr_scheduler": options})
    assert (config.interval, config.frequency, config.name, config.strict) == ("step", 3, "decay", False)
    assert not config.reduce_on_plateau


def test_a_config_object_is_taken_as_it_is(optimizer):
    config = LRSchedulerConfig(StepLR(optimizer, 1), interval="step")
    assert schedulers(([optimizer], [config])) == [config]


def test_none_trains_without_updates_and_says_so():
    with pytest.warns(UserWarning, match="configure_optimizers returned None"):
        (mock,), configs = parse(None, automatic=True)
    assert configs == []
    calls = []
    assert mock.step(lambda: calls.append(1) or 5) == 5
    assert calls == [1]
    assert MockOptimizer().step() is None


def test_an_optimizer_of_another_kind_will_do(optimizer):
    class Wrapped:
        def __init__(self, inner):
            self.param_groups, self.state = inner.param_groups, inner.state

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

        def step(self, closure=None):
            pass

        def zero_grad(self):
            pass

    wrapped = Wrapped(optimizer)
    assert parse(wrapped, automatic=True)[0] == [wrapped]


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["sgd", 5, [1, 2], {"lr_scheduler": None}, {}, ([], "x", 3)])
def test_another_form_is_refused_with_the_known_ones(answer):
    with pytest.raises(MisconfigurationException, match=r"configure_optimizers must return one of.*got"):
        parse(answer, automatic=True)


def test_an_unknown_key_beside_the_optimizer_is_said(optimizer):
    with pytest.warns(UserWarning, match=r"unknown key\(s\) scheduler are ignored"):
        parse({"optimizer": optimizer, "scheduler": StepLR(optimizer, 1)}, automatic=True)


def test_an_unknown_option_of_a_scheduler_is_said(optimizer):
    with pytest.warns(UserWarning, match=r"unknown key\(s\) intervall are ignored"):
        schedulers(([optimizer], [{"scheduler": StepLR(optimizer, 1), "intervall": "step"}]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval": "batch"}, '"interval" must be "epoch" or "step", got \'batch\''),
        ({"frequency": 0}, '"frequency" must be an int >= 1, got 0'),
        ({"frequency": 1.5}, '"frequency" must be an int >= 1, got 1.5'),
        ({"scheduler": None}, 'needs the key "scheduler"'),
    ],
)
def test_wrong_options_of_a_scheduler_are_refused(optimizer, options, message):
    with pytest.raises(MisconfigurationException, match=message):
        schedulers(([optimizer], [{"scheduler": StepLR(optimizer, 1), **options}]))


def test_a_scheduler_of_a_forgotten_optimizer_is_refused(optimizer):
    other = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(MisconfigurationException, match=r"StepLR is attached to an optimizer that .* did not return"):
        parse(([optimizer], [StepLR(other, 1)]), automatic=True)


def test_a_plateau_scheduler_needs_a_metric_unless_the_module_steps_it(optimizer):
    answer = {"optimizer": optimizer, "lr_scheduler": ReduceLROnPlateau(optimizer)}
    with pytest.raises(MisconfigurationException, match="must name the metric of a ReduceLROnPlateau"):
        parse(answer, automatic=True)
    parse(answer, automatic=False)


def test_the_metric_may_stand_beside_the_optimizer_or_the_scheduler(optimizer):
    plateau = ReduceLROnPlateau(optimizer)
    for answer in (
        {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "val_loss"},
        {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}},
    ):
        (config,) = schedulers(answer)
        assert (config.monitor, config.reduce_on_plateau) == ("val_loss", True)


# -- stepping ----------------------------------------------------------------------------------------------------------


def test_a_scheduler_is_due_at_every_nth_of_its_intervals(optimizer):
    by_epoch = LRSchedulerConfig(StepLR(optimizer, 1))
    third_step = LRSchedulerConfig(StepLR(optimizer, 1), interval="step", frequency=3)
    plateau = LRSchedulerConfig(ReduceLROnPlateau(optimizer), reduce_on_plateau=True, monitor="x")
    configs = [by_epoch, third_step, plateau]
    assert [due(configs, "step", i, plateau=False) for i in range(4)] == [[], [], [third_step], []]
    assert due(configs, "epoch", 0, plateau=False) == [by_epoch]
    assert due(configs, "epoch", 0, plateau=True) == [plateau]


def test_the_monitored_value_is_looked_up(optimizer):
    config = LRSchedulerConfig(ReduceLROnPlateau(optimizer), reduce_on_plateau=True, monitor="val_loss")
    assert monitored_value(config, {"val_loss": 0.0}) == 0.0


def test_a_missing_value_is_an_error_that_names_what_there_is(optimizer):
    config = LRSchedulerConfig(ReduceLROnPlateau(optimizer), reduce_on_plateau=True, monitor="val_los")
    with pytest.raises(
        MisconfigurationException, match="'val_los', which has not been logged; there are: acc, val_loss"
    ):
        monitored_value(config, {"val_loss": 1.0, "acc": 0.5})
    config.strict = False
    with pytest.warns(RuntimeWarning, match="the scheduler is skipped"):
        assert monitored_value(config, {}) is None


def test_nothing_is_said_where_all_is_well(optimizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse({"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 1)}}, automatic=True)
