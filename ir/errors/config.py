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


class SettingsUnreadable(ConfigError):
    """A file with the settings of another framework (--from, --beat) that does not exist, cannot be read, or is not
    what its name says: no TOML, no JSON, no YAML, no command line."""

    code = "MW2014"


class SettingsOfUnknown(ConfigError):
    """A file of settings that is no known framework's, or may be that of several: --from-format says whose it is."""

    code = "MW2015"


class SettingValueBad(ConfigError):
    """A setting with a value of the wrong type, out of range, of which prices know nothing, or that a variable holds
    which the file does not set."""

    code = "MW2016"


class SettingUnknown(ConfigError):
    """A setting that its framework does not publish, and that is nearly one which decides how a model is cut: as it
    stands it would decide nothing."""

    code = "MW2017"


class SettingNotPriced(ConfigError):
    """A published setting that changes how a model is cut or run, and of which prices know nothing. Whatever was priced
    without it would be another run."""

    code = "MW2018"


class SettingsContradict(ConfigError):
    """Settings that are well formed, each by itself, and that their framework refuses together."""

    code = "MW2019"


class NotInSettings(ConfigError):
    """A plan that the settings of another framework cannot say, not even nearly: what is left of it has no batch, or
    the model refuses it."""

    code = "MW2020"
