"""The configs of this package; Hydra finds them as pkg://my_pe.conf."""
