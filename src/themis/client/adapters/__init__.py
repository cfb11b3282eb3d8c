"""Other people's tools on Themis: Optuna's studies, Ray Tune's trials. Each file needs its tool, and only when it is used."""
