"""The trainer: entry points (``trainer.py``), the frame around them (``run.py``) and the loops (``fit.py``, …)."""

from hookbus.trainer.trainer import Trainer

__all__ = ["Trainer"]
