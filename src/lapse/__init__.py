"""Neural networks that know how much time has passed: learning from irregularly-sampled time series."""

__version__ = "0.1.0"
