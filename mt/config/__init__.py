"""Configuration of a run: strict, frozen sections read from YAML."""

from mt.config.data import DataConfig, Source
from mt.config.decoding import DecodingConfig, EvaluationConfig
from mt.config.model import ModelConfig, TokenizerConfig
from mt.config.root import Config
from mt.config.training import TrainingConfig

__all__ = [
    "Config",
    "DataConfig",
    "DecodingConfig",
    "EvaluationConfig",
    "ModelConfig",
    "Source",
    "TokenizerConfig",
    "TrainingConfig",
]
