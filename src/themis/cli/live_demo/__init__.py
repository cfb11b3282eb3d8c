"""A live demonstration: three people's real, small training runs on virtual GPUs of this machine."""
