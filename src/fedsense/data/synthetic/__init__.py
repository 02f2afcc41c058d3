"""Generated federations: always labelled synthetic, no download."""

from fedsense.data.synthetic.imu import synthetic_imu

__all__ = ["synthetic_imu"]
