"""The tuner: learning rate and batch size searched for by a call, without a training after it."""

from hookbus.tuner.tuner import Tuner

__all__ = ["Tuner"]
