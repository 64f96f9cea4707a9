"""The case library: YAML files in, concrete cases out."""
