"""Decision trees over wide windows, for tests."""

import itertools

from fsachain.graph.context import PDF_CLASS, ContextTree, DecisionTree, Leaf, Split, Table


def tree_of(phones, topology, width, centre, pdf_of):
    """A context tree whose pdfs are `pdf_of(window, pdf_class)`, by one table after another."""
    nodes = []

    def grow(window):
        number = len(nodes)
        nodes.append(None)
        place = len(window)
        if place < width:
            values = range(1 if place == centre else 0, len(phones) + 1)
            branches = {value: grow((*window, value)) for value in values}
            nodes[number] = Table(place, tuple(branches.get(v, -1) for v in range(len(phones) + 1)))
        else:
            branches = []
            for pdf_class in range(topology.num_pdf_classes):
                branches.append(len(nodes))
                nodes.append(Leaf(pdf_of(window, pdf_class)))
            nodes[number] = Table(PDF_CLASS, tuple(branches))
        return number

    grow(())
    alone = tuple((phone,) for phone in range(1, len(phones) + 1))
    return ContextTree(tuple(phones), topology, width, alone, frozenset(), DecisionTree(tuple(nodes)), centre)


def full_tree(phones, topology, width, centre):
    """Every window and class has a pdf of its own."""
    numbers = itertools.count()
    return tree_of(phones, topology, width, centre, lambda window, pdf_class: next(numbers))


def split_triphone(phones, topology):
    """A triphone tree of three pdfs, one pdf class: is the right phone 1 or none? if so, is the left phone 1?"""
    nodes = (Split(2, frozenset({0, 1}), 1, 4), Split(0, frozenset({1}), 2, 3), Leaf(2), Leaf(0), Leaf(1))
    alone = tuple((phone,) for phone in range(1, len(phones) + 1))
    return ContextTree(tuple(phones), topology, 3, alone, frozenset(), DecisionTree(nodes), 1)
