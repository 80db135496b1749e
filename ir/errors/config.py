"""MW2: configuration files."""

from meshwright.ir.errors.base import MeshwrightError


class ConfigError(MeshwrightError):
    """Hugging Face configurations, shape files, and questions in files."""

    family = "MW2"
    exit_code = 6


class UnknownModelType(ConfigError):
    """The ``model_type`` of a Hugging Face configuration is unknown to the installed transformers."""

    code = "MW2001"


class RemoteCodeRefused(ConfigError):
    """The Hugging Face configuration asks for code of its own (``auto_map``), and such code is never run."""

    code = "MW2002"


class ShapeFileNotToml(ConfigError):
    """The shape file is not valid TOML."""

    code = "MW2003"


class ShapeKeyUnknown(ConfigError):
    """The shape file has a key that no shape has. Nothing is ignored: a misspelt key would price another model."""

    code = "MW2004"


class ShapeKeyMissing(ConfigError):
    """The shape file lacks a key that has no default."""

    code = "MW2005"


class ShapeImpossible(ConfigError):
    """A number in the shape file is of the wrong type, not positive, or contradicts another one."""

    code = "MW2006"


class ConfigUnreadable(ConfigError):
    """The Hugging Face configuration is not a JSON object."""

    code = "MW2007"


class ConfigValueBad(ConfigError):
    """A value of a Hugging Face configuration that is of the wrong type or size, or given twice; or of which the
    installed transformers builds no model."""

    code = "MW2008"


class QuestionUnreadable(ConfigError):
    """--config names a file that does not exist or cannot be read."""

    code = "MW2009"


class QuestionNotToml(ConfigError):
    """The file of --config is not valid TOML."""

    code = "MW2010"


class QuestionKeyUnknown(ConfigError):
    """The file of --config has a key that means nothing there. Nothing is ignored: another question would be
    answered."""

    code = "MW2011"


class QuestionKeyMissing(ConfigError):
    """Neither the file of --config nor the command line names the model, or the cluster."""

    code = "MW2012"


class QuestionValueBad(ConfigError):
    """A value in the file of --config that is of the wrong type, out of range, or not among the words allowed."""

    code = "MW2013"
