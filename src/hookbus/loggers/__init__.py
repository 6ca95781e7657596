"""Loggers: metrics and hyperparameters on their way to files and services."""

from hookbus.loggers.csv import CSVLogger
from hookbus.loggers.logger import DummyLogger, Logger
from hookbus.loggers.tensorboard import TensorBoardLogger

__all__ = ["CSVLogger", "DummyLogger", "Logger", "TensorBoardLogger"]
