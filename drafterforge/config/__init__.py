"""Configuration: a frozen dataclass per command, composed from YAML files and `key=value` arguments."""
