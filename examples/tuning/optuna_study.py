"""An Optuna study as one app, beside whatever else runs: ``themis up``, then ``python optuna_study.py``."""

import optuna

from themis.client.adapters.optuna import optimize


def objective(trial):
    """A quadratic that "learns" in ten steps."""
    x = trial.suggest_float("x", -10.0, 10.0)
    loss = 0.0
    for step in range(10):
        loss = (x - 2.0) ** 2 + 10.0 / (step + 1)
        trial.report(loss, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss


if __name__ == "__main__":
    study = optuna.create_study(
        storage="sqlite:///study.db", study_name="example", load_if_exists=True, pruner=optuna.pruners.MedianPruner()
    )
    app = optimize(study, objective, n_trials=4, gpus=1, hours=0.01)
    print(f"App {app.id} {app.state}; best x {study.best_params['x']:.2f}")
