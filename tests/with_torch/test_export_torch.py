"""torch's exporter, and what it does silently wrong."""

import numpy as np
import pytest
import torch
from torch import nn

from edgeproof.errors import InputError, UnsupportedError
from edgeproof.train.export_torch import export_torch
from small_nets import ran


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def drawn(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.n1, self.drop, self.head = (
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.Dropout(0.5),
            nn.Linear(64, 5),
        )

    def forward(self, x):
        return self.head(self.drop(self.n1(self.c1(x)).relu()).flatten(1))


def test_a_module_in_training_is_written_for_inference_and_stays_in_training():
    net = Net()
    net.n1.eval()
    model = export_torch(net, {"picture": drawn(2, 3, 6, 6)}, outputs=("scores",))
    assert [str(s) for s in (*model.inputs, *model.outputs)] == [
        "picture float32[batch, 3, 6, 6]",
        "scores float32[batch, 5]",
    ]
    assert "Dropout" not in {n.op_type for n in model.graph.graph}
    assert (net.training, net.drop.training, net.n1.training) == (True, True, False)
    fresh = drawn(4, 3, 6, 6)
    want = net.eval()(torch.from_numpy(fresh)).detach().numpy()
    np.testing.assert_allclose(ran(model, {"picture": fresh}), want, atol=1e-5)


def test_a_batch_that_became_a_number_is_caught():
    class Baked(nn.Module):
        def forward(self, x):
            return x.reshape(int(x.shape[0]), -1) * torch.ones(int(x.shape[0]), 1)

    with pytest.raises(UnsupportedError, match="one sample more") as caught:
        export_torch(Baked(), {"x": drawn(2, 3)})
    assert caught.value.code == "export.batch"
    assert export_torch(Baked(), {"x": drawn(2, 3)}, dynamic=False).inputs[0].shape == (2, 3)


def test_the_first_layer_with_other_numbers_is_named():
    class Moody(nn.Module):
        """Not the same when traced, as a branch on Python's side is."""

        def forward(self, x):
            return x * (1.5 if torch.jit.is_tracing() else 1.0)

    net = nn.Sequential(nn.Linear(4, 4), Moody(), nn.Linear(4, 2))
    with pytest.raises(UnsupportedError, match=r"differs by") as caught:
        export_torch(net, {"x": drawn(2, 4)})
    assert (caught.value.code, caught.value.subject) == ("export.differs", "1")


def test_an_old_opset_and_a_wrong_count_of_names_are_refused():
    net = nn.Linear(3, 2)
    with pytest.raises(InputError, match=r"export\.opset"):
        export_torch(net, {"x": drawn(2, 3)}, opset=11)
    with pytest.raises(InputError, match=r"export\.outputs"):
        export_torch(net, {"x": drawn(2, 3)}, outputs=("a", "b"))
    assert export_torch(net, {"x": drawn(2, 3)}, opset=18).graph.opset_imports[""] == 18
