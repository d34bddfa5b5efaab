"""Run the cohort in Flower's simulation on Ray, with its message API and its FedAvg; the server evaluates."""
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from shape import CNN, Shape, batches, correct, mark

SHAPE = Shape.told()
CLIENT, SERVER = ClientApp(), ServerApp()


@CLIENT.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    network = CNN().to(SHAPE.device)
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(network.parameters(), SHAPE.lr)
    for x, y in batches(*SHAPE.training(int(context.node_config["partition-id"])), SHAPE.batch):
        optimiser.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimiser.step()
    return Message(RecordDict({"arrays": ArrayRecord(network.state_dict()),
                               "metrics": MetricRecord({"num-examples": SHAPE.samples})}), reply_to=message)


@SERVER.main()
def serve(grid: Grid, context: Context) -> None:
    torch.set_num_threads(SHAPE.cores)
    network, tests = CNN().to(SHAPE.device), SHAPE.testing()

    def evaluate(when: int, arrays: ArrayRecord) -> MetricRecord | None:
        # The call before the first round.
        if when == 0:
            return None
        mark("trained")
        network.load_state_dict(arrays.to_torch_state_dict())
        found = MetricRecord({"accuracy": correct(network, *tests) / len(tests[1])})
        mark("judged")
        return found

    strategy = FedAvg(fraction_train=SHAPE.participants / SHAPE.clients, fraction_evaluate=0.,
                      min_train_nodes=SHAPE.participants, min_available_nodes=SHAPE.clients)
    strategy.start(grid, ArrayRecord(network.state_dict()), SHAPE.rounds + 1, evaluate_fn=evaluate)


if __name__ == "__main__":
    share = 1 / SHAPE.cores if SHAPE.device != "cpu" else 0.
    run_simulation(SERVER, CLIENT, SHAPE.clients, backend_config={
        "init_args": {"num_cpus": SHAPE.cores}, "client_resources": {"num_cpus": 1, "num_gpus": share}})
