"""MW1: loading and tracing a model."""

from meshwright.ir.errors.base import MeshwrightError


class ModelError(MeshwrightError):
    """Loading and tracing a model."""

    family = "MW1"
    exit_code = 5


class ModelFileMissing(ModelError):
    """MODEL names a file or a directory that does not exist, or that cannot be read: only regular files are."""

    code = "MW1001"
    exit_code = 2


class FactoryMissing(ModelError):
    """The model file has no attribute of the name after the colon, or it is not callable."""

    code = "MW1002"
    exit_code = 2


class FactoryRaised(ModelError):
    """The model file, its factory, or an object of it raised an exception, of any kind; or the factory returned what is
    no model. The place is the user's innermost line."""

    code = "MW1003"


class ModelFileExited(ModelError):
    """The model file called ``sys.exit`` while it was imported or built. Loading a model file executes it."""

    code = "MW1004"


class ModelTimedOut(ModelError):
    """Importing the model file or calling its factory took longer than the time allowed."""

    code = "MW1005"


class EmptyModel(ModelError):
    """The model has no parameters: there is nothing to place."""

    code = "MW1006"


class NoExampleInputs(ModelError):
    """The inputs of the model cannot be derived, and its file defines no ``example_inputs(batch, seq)``."""

    code = "MW1007"
    hook = """\
def example_inputs(batch, seq):
    import torch

    # The model is given the entries that its forward has parameters for; the loss sees them all.
    text = torch.zeros(batch, seq + 1, dtype=torch.long)
    return {"tokens": text[:, :-1], "labels": text[:, 1:]}
"""


class NoLoss(ModelError):
    """The model's output is no scalar, and its file defines no ``loss(outputs, batch)``: there is no backward."""

    code = "MW1008"
    hook = """\
def loss(outputs, batch):
    import torch.nn.functional as F

    return F.cross_entropy(outputs.flatten(0, 1).float(), batch["labels"].flatten(), ignore_index=-100)
"""


class DataDependentControlFlow(ModelError):
    """The model branches on, or sizes a tensor by, the value of a tensor; a plan is made without any values."""

    code = "MW1009"


class UnsupportedDtype(ModelError):
    """A parameter, buffer or input has a dtype for which there is no size or no rule."""

    code = "MW1010"


class ForwardRaised(ModelError):
    """The forward pass, or the loss, raised an exception while one training step was traced."""

    code = "MW1011"


class ModelKindUnknown(ModelError):
    """MODEL is none of the things that a model can be read from."""

    code = "MW1012"
    exit_code = 2


class HookUnusable(ModelError):
    """A hook of the model file that is not what the contract says: ``dims`` that do not fit the inputs, a ``loss`` that
    cannot be called with outputs and batch."""

    code = "MW1013"


class NoTwin(ModelError):
    """No small twin of a model can be made, on which its plan could be run: its sizes are not found, what comes of
    smaller ones is another structure, or stages of the plan have different meshes."""

    code = "MW1014"


class SequenceTooLong(ModelError):
    """More tokens than the model has positions for: it looks up rows that a table has not, or runs with shorter
    sequences only."""

    code = "MW1015"
    exit_code = 2


class ModelTooLarge(ModelError):
    """A model of more modules, or modules nested deeper, than are taken on (docs/limits.md)."""

    code = "MW1016"


class AnnotationAxis(ModelError):
    """A sharding in a model's own code that names an axis which the mesh lacks."""

    code = "MW1017"


class AnnotationMissing(ModelError):
    """A model whose own shardings are asked for, and whose code says nothing of any."""

    code = "MW1018"
