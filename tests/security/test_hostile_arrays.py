"""npz files and files of tables: no objects, no bombs, no index that leaves its array."""

import io
import zipfile
from collections.abc import Callable

import numpy as np
import pytest

from fsachain.errors import DataError
from fsachain.files import read_npz
from fsachain.fsa import Fsa
from fsachain.table import TransitionTable, compile_table
from tools.fuzz.reader import within

SMALL = 20_000_000  # bytes; what is claimed below is gigabytes


def npy(header, data=b"", version=b"\1\0"):
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version == b"\1\0" else 4, "little") + text + data


def plain(shape="(2,)", kind="<i4"):
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"


def zipped(members, **options):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def objects():
    out = io.BytesIO()
    np.savez(out, a=np.array([print], dtype=object))
    return out.getvalue()


def lying_size():
    """An archive whose directory says that a member has four gigabytes."""
    content = bytearray(zipped({"a.npy": npy(plain("(1000000000,)"), bytes(64))}))
    place = content.index(b"PK\1\2") + 24
    content[place : place + 4] = (0xFFFFFFF0).to_bytes(4, "little")
    return bytes(content)


def twice():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        for _ in range(2):
            archive.writestr("a.npy", npy(plain(), bytes(8)))
    return out.getvalue()


BOMB = zipped({"a.npy": npy(plain("(100000000,)"), bytes(400_000_000))}, compression=zipfile.ZIP_DEFLATED)
ATTACKS: dict[str, tuple[Callable[[], bytes], str]] = {
    "pickled objects": (objects, "Python objects"),
    "zip bomb": (lambda: BOMB, "claims 1 array of"),
    "directory that claims four gigabytes": (lying_size, "claims"),
    "array that claims more than its member": (
        lambda: zipped({"a.npy": npy(plain("(1000000000,)"), bytes(8))}),
        "claims 4000000000",
    ),
    "array that claims less": (lambda: zipped({"a.npy": npy(plain("(1,)"), bytes(8))}), "claims 4 bytes"),
    "shape of many digits": (lambda: zipped({"a.npy": npy(plain("(" + "9" * 400 + ",)"))}), "another kind"),
    "shape that a careless pattern tries in all ways": (
        lambda: zipped({"a.npy": npy(plain("(" + "1" * 600 + "x"))}),
        "another kind",
    ),
    "negative length": (lambda: zipped({"a.npy": npy(plain("(-1,)"))}), "another kind"),
    "header that is a program": (lambda: zipped({"a.npy": npy("__import__('os').system('true')")}), "another kind"),
    "header nested without end": (lambda: zipped({"a.npy": npy("(" * 60_000)}), "another kind"),
    "header of version 9": (lambda: zipped({"a.npy": npy(plain(), version=b"\x09\0")}), "version"),
    "type that does not exist": (lambda: zipped({"a.npy": npy(plain(kind="<x4"), bytes(8))}), "another kind"),
    "width that does not exist": (lambda: zipped({"a.npy": npy(plain(kind="<i7"), bytes(14))}), "damaged|not understood"),
    "two arrays of one name": (twice, "same name"),
    "no archive": (lambda: b"PK\3\4 and then nothing", "no npz file"),
    "a thousand and one arrays": (lambda: zipped({f"{n}.npy": b"" for n in range(1001)}), "1001 arrays"),
    "array that unpacks at once": (
        lambda: zipped({"a.npy": npy(plain("(1000000,)"), bytes(4_000_000))}, compression=zipfile.ZIP_BZIP2),
        "packed in another way",
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_archive_that_lies_is_refused_within_little_memory(attack, tmp_path):
    make, message = ATTACKS[attack]
    path = tmp_path / "lie.npz"
    path.write_bytes(make())
    with within(SMALL), pytest.raises(DataError, match=message) as caught:
        read_npz(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("name", ["../outside.npy", "/tmp/outside.npy", "a/../../outside.npy"])
def test_members_never_become_files(name, tmp_path):
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "a.npz").write_bytes(zipped({name: npy(plain(), bytes(8))}))
    assert read_npz(folder / "a.npz")[name.removesuffix(".npy")].tolist() == [0, 0]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.npz", "inside"]


def test_sound_arrays_of_every_kind_come_back(tmp_path):
    arrays = {
        "scalar": np.array(3.5),
        "text": np.array("words"),
        "texts": np.array(["a", "bc"]),
        "empty": np.zeros((0, 3), np.float32),
        "flags": np.array([True, False]),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "bytes": np.array([b"a"]),
        "big": np.arange(3, dtype=">i2"),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        found = read_npz(tmp_path / "a.npz")
        assert found.keys() == arrays.keys()
        for name, value in arrays.items():
            np.testing.assert_array_equal(found[name], value)
            assert found[name].dtype == value.dtype
        assert read_npz(tmp_path / "a.npz", ("flags", "absent")).keys() == {"flags"}


def put(value):
    """At the second place of an array."""
    return lambda array: np.concatenate([array[:1], np.array([value], array.dtype), array[2:]])


def cut(array):
    return array[:-1]


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("by_src.src", put(10**6), ""),
        ("by_src.dst", put(-1), ""),
        ("by_dst.column", put(2**31 - 1), ""),
        ("by_column.arc", put(4), ""),
        ("by_dst.offsets", put(10**9), ""),
        ("active_pdfs", put(3), ""),
        ("by_src.log_prob", cut, "by_src.log_prob"),
        ("initial_log_prob", cut, "initial_log_prob"),
        ("by_dst.offsets", cut, "by_dst.offsets"),
    ],
)
def test_a_table_whose_arrays_do_not_fit_reaches_no_kernel(field, change, message, tmp_path):
    fsa = Fsa(3, [0, 0, 1, 1], [0, 1, 1, 2], [0, 1, 1, 2], [0.0] * 4, [-np.inf, -np.inf, 0.0])
    compile_table(fsa, 3).save(tmp_path / "t.npz")
    arrays = read_npz(tmp_path / "t.npz")
    np.savez(tmp_path / "t.npz", **{**arrays, field: change(arrays[field])})
    with pytest.raises(DataError, match=message or "not a saved TransitionTable"):
        TransitionTable.load(tmp_path / "t.npz")
