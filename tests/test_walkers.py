"""Graphs in other people's trainers: whoever walks over a batch, or copies it, leaves them whole."""

import base64
import copy
import dataclasses
import math
import pickle
import zlib

import numpy as np
import pytest
import torch
from torch.distributed.utils import _apply_to_tensors, _recursive_to, _to_kwargs
from torch.nn.parallel.distributed import _find_tensors
from torch.utils import _pytree
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from fsachain import DenominatorGraph, Fsa, LFMMILoss, Numerator, TableBatch, compile_table

CPU = torch.device("cpu")
FSA = Fsa(2, [0, 0, 1], [0, 1, 1], [0, 1, 2], [-0.5, -0.25, -1.0], [-math.inf, 0.0])
NUMERATOR = Numerator(FSA, ("six",), *np.zeros((2, 3), np.int32), np.ones(3, bool))
TABLE = compile_table(FSA, 4)
GRAPHS = {
    "Fsa": FSA,
    "TransitionTable": TABLE,
    "TableBatch": TableBatch.pack([TABLE, TABLE], ["a", "b"]),
    "Numerator": NUMERATOR,
    "DenominatorGraph": DenominatorGraph(FSA, 4),
}
of_every_graph = pytest.mark.parametrize("name", GRAPHS)
# By Python 3.11 and pickle's protocol 4: the five objects as they were before anybody hid their fields.
PICKLED = (
    b"c-rk%O=}ZD7|v#!rfEYgC~d)m9$S!5p-_=xXd^0(M3B<!vY(l)o82%wu|_QDA=Sv-I{pCh>~F|bPqh~h3gS`mQZK#McV~8!RFX7%"
    b"&`Udz-I>YzG5fslJkRs7H@~t8KIUoG@>LzFwws3uqw*bi?y-dzY=_O$Nw;2Ae4-N5XQd>SeXKJ&1Dmx*UeP^l=Bssw*eb?qgVC&l"
    b"P2F>Sg6legAT-4-8BM!}Fxg|JM3WUIjlE<K*?dVV$xVhPY04mtni;qx?IqTFCH|GEw8F~e^7=6h{wO5~(^|#w@QH*3KL%S=HhjWR"
    b"24#czDAyZ(CbXAM*w+ke1p8!UKjC;4rG`CifYU{qv~F|{j%NEEdrlnsdt1Ceh3~^QPm!~1S9O#jiIT8bY!#<Nx8n!}?w*1&VFLKp"
    b"gHTaTiK;m!qZc-?>iRaZJ$HleL={FUDC<N}WfkjCV_7T!9axOfDOD%-V^geSz%{Nl6kd@PnqI~FrfqI_n=0*DmTwY&FqHPFP>Qs{"
    b"kbAH|<HL{I+d1fRjIJ5iJ*QrEV<3SR`r9s^)(tY$BSxOOz&yC0=zdt*2mReQd(cb%NA!^O?_ooJEXXndSya*?sErBKuKwL~XB@q0"
    b"+XY66Ls`){Jm%?^&@#<AruwMS4N*QpUz$pE#ONd^tu?;bgBlf3VK>kt2?PtYWS6xF<fC&PzY11sC=X0#VwHH9(M-8B@9>Zu2p*DY"
    b"YTLtx57Ot`PgoOd;p!<h<hkaM3m9P`cN8M<3L>%78=ynl*}%#66~WyD`B1ywtBKG0YN9MjBIbo4re;=b*B9q0)3oJyAl3$J!PLVQ"
    b"pmf-s;=-=f991_t?w30F8K&!1L5?_f)3>{;y8*CW_4tNlv<5nn-L?tx>V$s?gw82ZZv;j4hct%q<=)TVv-<_~@qJUi`J*7TOvo0x"
    b")fFkUTH>itF~&VukHdx1nZC{F>A7x<jMdw7wTO+`hrt|hZF%SG(YvFz_W8;|W&fZZio=Lv5`M-0)@#TJES44I7c$RQhVK%V{{yKt"
    b"&e{"
)


def torch_walkers():
    """Names and functions of a batch: what torch itself does to the arguments of a module, or to a batch."""
    yield (
        "FSDP 1, mixed precision of DDP",
        lambda batch: _apply_to_tensors(lambda tensor: tensor.half(), batch),
    )
    yield "inputs of DDP and FSDP 1", lambda batch: _recursive_to(batch, CPU, False)[0]
    yield "keyword inputs", lambda batch: _to_kwargs((), {"batch": batch}, CPU, False)[1][0]["batch"]
    yield "FSDP 2", lambda batch: _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.half(), batch)
    yield "any leaf of a tree", lambda batch: _pytree.tree_map(lambda leaf: leaf, batch)


WALKERS = dict(torch_walkers())
if torch.cuda.is_available():  # elsewhere a tensor cannot be pinned
    WALKERS["pin_memory"] = pin_memory


def assert_equal(found, expected):
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)
    if isinstance(expected, TableBatch):
        assert found.names == expected.names
        assert all(map(is_same_table, found.tables, expected.tables))
    elif not isinstance(expected, DenominatorGraph):
        for name in expected.__match_args__:
            ours, theirs = getattr(found, name), getattr(expected, name)
            same = repr(ours) == repr(theirs)
            assert np.array_equal(ours, theirs) if isinstance(theirs, np.ndarray) else same


def is_same_table(found, expected):
    ours, theirs = found.arrays(), expected.arrays()
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[key], theirs[key]) for key in ours)


@of_every_graph
@pytest.mark.parametrize("walker", WALKERS)
def test_what_torch_does_to_a_batch_leaves_a_graph_whole(name, walker):
    graph = GRAPHS[name]
    batch = {"graphs": [graph, graph], "scores": torch.zeros(2, 3), "nested": ((graph,), {"one": graph})}
    walked = WALKERS[walker](batch)
    for one in (*walked["graphs"], walked["nested"][0][0], walked["nested"][1]["one"]):
        assert_equal(one, graph)


@of_every_graph
def test_pinning_takes_a_graph_as_it_is(name):
    assert pin_memory([GRAPHS[name]])[0] is GRAPHS[name]


@of_every_graph
def test_a_loader_hands_graphs_on_through_its_workers(name):
    loader = DataLoader([GRAPHS[name]], batch_size=None, num_workers=1, collate_fn=lambda one: [one])
    ((found,),) = loader
    assert_equal(found, GRAPHS[name])


@of_every_graph
def test_the_graph_has_no_tensor_to_find_and_a_copy_is_itself(name):
    graph = GRAPHS[name]
    assert list(_find_tensors([graph])) == []
    if name != "DenominatorGraph":
        assert dataclasses.fields(graph) == ()
        assert copy.copy(graph) is graph and copy.deepcopy({"one": graph})["one"] is graph


def test_replace_and_immutability_are_those_of_dataclasses():
    longer = dataclasses.replace(FSA, log_prob=FSA.log_prob - 1.0)
    assert longer.log_prob.tolist() == (FSA.log_prob - 1.0).tolist() and longer.src is FSA.src
    assert dataclasses.replace(NUMERATOR, words=("seven",)).fsa is FSA
    with pytest.raises(dataclasses.FrozenInstanceError):
        FSA.start = 1
    with pytest.raises(TypeError, match="num_states"):
        Fsa()
    assert [part.name for part in dataclasses.fields(Fsa)] == list(Fsa.__match_args__)

    @dataclasses.dataclass(frozen=True, eq=False)
    class Named(Fsa):
        name: str = ""

    assert Named(1, [], [], [], [], [0.0], name="empty").name == "empty"


@pytest.mark.skipif(np.__version__.startswith("1."), reason="numpy 1 cannot read pickles of numpy 2")
def test_what_was_pickled_before_is_read():
    read = pickle.loads(zlib.decompress(base64.b85decode(PICKLED)))
    for found, name in zip(read, GRAPHS, strict=True):
        expected = GRAPHS[name]
        if name == "Numerator":
            assert found.words == ("six",) and found.arc_phone.tolist() == [1, 2, 3]
            found, expected = found.fsa, expected.fsa
        assert_equal(found, expected)
    again = pickle.loads(pickle.dumps(read))
    assert [type(one).__name__ for one in again] == list(GRAPHS)


def test_a_walk_changes_no_bit_of_the_loss():
    loss = LFMMILoss(GRAPHS["DenominatorGraph"])
    scores = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(3))
    for graphs in ([FSA, FSA], [TABLE, TABLE], [NUMERATOR, NUMERATOR], GRAPHS["TableBatch"]):
        expected = loss(scores, [6, 5], graphs)
        for walk in WALKERS.values():
            assert torch.equal(loss(scores, [6, 5], walk(graphs)), expected)
