"""Modules that moved are still found under their old names, for one release, with a warning that names the new place."""

import importlib
import pickle
import subprocess
import sys
import warnings

import pytest

from fsachain.moved import MOVED, new_name


def forget(old):
    for name in [name for name in sys.modules if name == old or name.startswith(f"{old}.")]:
        del sys.modules[name]


@pytest.mark.parametrize("old", sorted(MOVED))
def test_an_old_name_gives_the_module_of_the_new_place_and_warns(old):
    forget(old)
    with pytest.warns(DeprecationWarning, match=f"{old} has moved; import {MOVED[old]} instead"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(MOVED[old])
    assert module.__spec__.name == MOVED[old]


def test_modules_below_an_old_package_are_those_of_the_new_one():
    forget("fsachain.data")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fsachain.data.cmvn import CmvnConfig as old
    from fsachain.asr.data.cmvn import CmvnConfig as new

    assert old is new


def test_pickles_that_name_an_old_place_are_read():
    from fsachain.asr.data.cmvn import CmvnConfig

    config = CmvnConfig()
    written = pickle.dumps(config, protocol=0)
    old = written.replace(b"fsachain.asr.data.cmvn", b"fsachain.data.cmvn")
    assert old != written
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert pickle.loads(old) == config


def test_the_warning_points_at_the_line_of_the_import():
    script = "import warnings; warnings.simplefilter('always')\nimport fsachain\nimport fsachain.nn\n"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "<string>:3: DeprecationWarning: fsachain.nn has moved" in output.stderr


def test_a_module_that_never_was_is_not_found_under_the_old_name():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ModuleNotFoundError, match=r"No module named 'fsachain\.data\.nothing'"):
            importlib.import_module("fsachain.data.nothing")
    assert new_name("fsachain.graph.lexicon") is None
    assert new_name("fsachain.data.cmvn") == "fsachain.asr.data.cmvn"
