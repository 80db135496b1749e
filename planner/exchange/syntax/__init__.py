"""Files of settings as they are written: a text becomes options by name, each with its line, and back.

| module | syntax |
|---|---|
| `arguments` | command lines in shell scripts: `--name value` |
| `tables` | TOML, JSON and YAML: tables of tables, whose names are joined by dots; `key=value` over YAML |
| `yaml` | the YAML that settings are written in, with the line of every key |

Readers run nothing, look nothing up, and write no file; what they cannot read is `SettingsUnreadable` at its line.
"""
