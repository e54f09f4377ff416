"""StableHLO and HLO text as torch_xla 2.9.0 writes them, with arrays and what torch computes of them.

    pip install torch==2.9.0 torch_xla==2.9.0
    python tests/data/torch/make.py

All numbers are small whole numbers or halves of them, so that f32 is exact in any order of sums.
network.mlir and network.mlirbc: torch.export of a network; network.npz: its arrays in the order of parameters, `in0` and
so on, and `out0`. step.mlir and step.hlo: a step of SGD as lazy tensors have it; step.npz: the same, with the new
parameters as `out0` and so on.
"""

import os
import pathlib

os.environ["PJRT_DEVICE"] = "CPU"

import numpy as np
import torch
import torch_xla
from torch import nn
from torch_xla.core import xla_model
from torch_xla.stablehlo import VariableType, exported_program_to_stablehlo

HERE = pathlib.Path(__file__).parent


class Network(nn.Module):
    """A convolution over images, a table of words, and a product of both."""

    def __init__(self):
        super().__init__()
        self.convolution, self.words = nn.Conv2d(3, 4, 3, padding=1), nn.Embedding(8, 6)
        self.dense = nn.Linear(4 * 4 * 4, 6)

    def forward(self, images, words):
        x = torch.max_pool2d(torch.relu(self.convolution(images)), 2)
        return self.dense(x.flatten(1)) + self.words(words).sum(1)


def whole(random, dims):
    return torch.from_numpy(random.integers(-2, 3, dims).astype(np.float32))


def save(name, arguments, results):
    named = {f"in{i}": np.asarray(array) for i, array in enumerate(arguments)}
    named |= {f"out{i}": np.asarray(array) for i, array in enumerate(results)}
    np.savez_compressed(HERE / f"{name}.npz", **named)


def main():
    random = np.random.default_rng(0)
    network = Network()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(whole(random, parameter.shape))
    images, words = whole(random, (2, 3, 8, 8)), torch.from_numpy(random.integers(0, 8, (2, 5)))
    program = exported_program_to_stablehlo(torch.export.export(network, (images, words)))
    (HERE / "network.mlir").write_text(program.get_stablehlo_text())
    (HERE / "network.mlirbc").write_bytes(program.get_stablehlo_bytecode())
    places = program._bundle.stablehlo_funcs[0].meta.input_locations
    state = program._bundle.state_dict
    inputs = (images, words)
    of = lambda place: inputs[place.position] if place.type_ == VariableType.INPUT_ARG else state[place.name]
    save("network", map(of, places), [network(*inputs).detach()])

    rate, cotangent = 0.5, whole(random, (2, 6))
    (network(*inputs) * cotangent).sum().backward()
    wanted = [(parameter - rate * parameter.grad).detach() for parameter in network.parameters()]
    device = torch_xla.device()
    network.zero_grad()
    network.to(device)
    (network(*[array.to(device) for array in inputs]) * cotangent.to(device)).sum().backward()
    new = [(parameter - rate * parameter.grad).detach() for parameter in network.parameters()]
    (HERE / "step.mlir").write_text(xla_model.get_stablehlo(new))
    (HERE / "step.hlo").write_text(torch_xla._XLAC._get_xla_tensors_hlo(new))
    arguments = torch_xla._XLAC._get_tensors_xla_device_data_node(new)[1]
    save("step", [array.cpu() for array in arguments], wanted)


if __name__ == "__main__":
    main()
