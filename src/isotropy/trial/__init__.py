"""Fine-tuning with and without calibration, over seeds [extra train]."""
