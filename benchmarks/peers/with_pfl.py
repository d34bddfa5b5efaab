"""Run the cohort in pfl-research as its own benchmark does: SimulatedBackend, with all users' tensors in memory."""
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from shape import CHUNK, CNN, Shape, correct, mark


class Network(CNN):
    """The network with the functions that pfl asks for."""

    def loss(self, x, y):
        return F.cross_entropy(self(x), y)

    def metrics(self, x, y):
        return {"accuracy": Weighted(correct(self, x, y), len(y))}


class Mark(TrainingProcessCallback):
    def __init__(self, what: str):
        self.what = what

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if get_framework_module().distributed.global_rank == 0:
            mark(self.what)
        return False, Metrics()


def main(shape: Shape) -> None:
    torch.set_num_threads(1)
    network = Network().to(shape.device)
    users = {i: shape.training(i) for i in range(shape.clients)}
    data = FederatedDataset.from_slices(users, get_user_sampler("random", range(shape.clients)))
    judged = NNEvalHyperParams(local_batch_size=CHUNK)
    FederatedAveraging().run(
        # pfl evaluates participants before and after their training; here only in the round that warms up.
        NNAlgorithmParams(central_num_iterations=shape.rounds + 1, evaluation_frequency=shape.rounds + 1,
                          train_cohort_size=shape.participants, val_cohort_size=0),
        SimulatedBackend(data, data, postprocessors=[WeightByUser()]),
        PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.)),
        NNTrainHyperParams(local_learning_rate=shape.lr, local_num_epochs=1, local_batch_size=shape.batch), judged,
        [Mark("trained"), CentralEvaluationCallback(Dataset(shape.testing()), judged), Mark("judged")])


main(Shape.told())
