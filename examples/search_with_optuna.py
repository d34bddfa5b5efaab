"""Search FedMHC's rate and pull with Optuna: `python examples/search_with_optuna.py [TRIALS]`, after
`pip install optuna`.

Trials are compared on validation samples, and a trial that falls behind is pruned after a few rounds. The test samples
are looked at once, for the settings that won."""
import sys

import optuna

import fedmpi

SETTINGS = {"rounds": 8, "evaluate": {"every": 2}, "model": {"name": "mlp", "hidden": 32},
            "data": {"clients": 20, "fraction": 0.5, "split": [0.6, 0.15, 0.25],
                     "partition": {"name": "pathological", "classes_per_client": 3}}}
ON_VALIDATION = "accuracy_mean_validation"


def train(trial: optuna.Trial, on_round=None) -> fedmpi.Result:
    """Train with the settings that a trial suggests."""
    method = {"name": "fedmhc", "M": 4, "lam": trial.suggest_float("lam", 0.01, 20, log=True)}
    train = {"lr": trial.suggest_float("lr", 0.001, 1, log=True), "steps": 5}
    return fedmpi.run(SETTINGS, out=f"runs/search/trial-{trial.number}", quiet=True, method=method, train=train,
                      on_round=on_round, resume="auto")


def objective(trial: optuna.Trial) -> float:
    """Return the best mean accuracy on validation samples."""
    def report(line: dict) -> None:
        if ON_VALIDATION in line:
            trial.report(line[ON_VALIDATION], line["round"])
            if trial.should_prune():
                raise optuna.TrialPruned
    return train(trial, report).metrics[ON_VALIDATION].max()


if __name__ == "__main__":
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0),
                                pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=3))
    study.optimize(objective, n_trials=int(sys.argv[1]) if len(sys.argv) > 1 else 20)
    best = fedmpi.load_result(f"runs/search/trial-{study.best_trial.number}")
    print(f"{study.best_params}\non validation samples {study.best_value:.2%}, on test samples "
          f"{best.values['accuracy_at_best_validation']:.2%}")
