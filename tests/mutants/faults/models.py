"""Faults planted into fedmpi/models, each seen by the suite: (definition, old text, new text)."""
from __future__ import annotations

FAULTS: list[tuple[str, str, str]] = [
    ("fedmpi.models.nets:CNN4.build", "pool1=nn.MaxPool2d(2)", "pool1=nn.AvgPool2d(2)"),
    ("fedmpi.models.nets:CNN4.build", "relu3=nn.ReLU()", "relu3=nn.Tanh()"),
    ("fedmpi.models.nets:LeNet5.build", "2 * (min(pixels) < 32)", "2 * (min(pixels) <= 32)"),
    ("fedmpi.models.nets:LeNet5.build", "relu4=nn.ReLU()", "relu4=nn.Identity()"),
    ("fedmpi.models.nets:MLP.build", "relu=nn.ReLU()", "relu=nn.GELU()"),
    ("fedmpi.models.nets:ResNet18.build", 'mode="fan_out"', 'mode="fan_in"'),
    ("fedmpi.models.nets:FastText.build", "padding_idx=0", "padding_idx=None"),
    ("fedmpi.models.build:as_input", "div_(HALF_PIXEL_RANGE).sub_(1)", "div_(2 * HALF_PIXEL_RANGE)"),
    ("fedmpi.models.flat:Model.__init__", "torch.manual_seed(seed)", "torch.manual_seed(seed + 1)"),
    ("fedmpi.models.flat:Model._build_another", "START_SEED_STRIDE * j", "j"),
    ("fedmpi.models.parameters:shape_parameter", "(out, height, width, channels)).movedim(-1, -3)",
     "(out, channels, height, width))"),
    ("fedmpi.models.flat:Net.release", "self._work = None", "self._work = work"),
    ("fedmpi.models.slices:is_inside", "part.stop <= block.stop", "part.start <= block.stop"),
    ("fedmpi.models.variational:Variational.__init__", "model._seed + CODE_SEED_OFFSET", "model._seed"),
    ("fedmpi.models.variational:split_gaussian", "F.softplus(s) + MIN_SIGMA", "F.softplus(s)"),
    ("fedmpi.models.variational:Experts.forward", "mu * sigma ** -2", "mu * sigma ** -1"),
    ("fedmpi.models.checks:try_network", "return its .logits", "return it"),
    ("fedmpi.models.build:make_blank_samples", "torch.ones(size", "torch.zeros(size"),
    ("fedmpi.models.tail:cut_networks", "front.names + [prefix + name for name in behind.names] == model.names",
     "front.names == model.names[:len(front.names)]"),
    ("fedmpi.models.checks:refuse_unfit_parameters", "if not value.requires_grad:", "if False:"),
    ("fedmpi.models.checks:try_modes", "(True, example), (True, example[:1])", "(True, example)"),
    ("fedmpi.models.parameters:Constants.follow", "if device not in copies:", "if True:")]
