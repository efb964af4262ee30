"""Damaged and hostile files for every reader: by hypothesis in the suite, by atheris in `make fuzz`."""
