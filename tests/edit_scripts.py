"""What may have been said where a transcript was written: edit scripts, one by one, without any graph."""

import itertools
import math

STAR = "*"


def scripts(labels, options, longest):
    """(labels and stars spelled, log-weight) of every edit script that spells at most `longest`, one after another."""
    count = len(labels)
    constant = (count + 1) * math.log(1 - math.exp(-options.deletion))
    constant -= count * math.log(1 + math.exp(-options.substitution) + math.exp(-options.insertion))
    for edits in itertools.product(("kept", "substituted", "inserted"), repeat=count):
        for extra in itertools.product(range(longest + 1), repeat=count + 1):
            spelled, left_out, is_first_of_its_kind = [], 0, True
            for place in range(count + 1):
                stars = extra[place] + (place < count and edits[place] == "substituted")
                is_first_of_its_kind &= not (stars and left_out)
                spelled += [STAR] * stars
                if place == count:
                    break
                left_out = left_out + 1 if edits[place] == "inserted" else 0
                is_first_of_its_kind &= left_out <= options.most_left_out
                spelled += [labels[place]] if edits[place] == "kept" else []
            paid = (
                (edits.count("substituted"), options.substitution),
                (edits.count("inserted"), options.insertion),
                (sum(extra), options.deletion),
            )
            weight = constant - sum(times * penalty for times, penalty in paid if times)
            if is_first_of_its_kind and len(spelled) <= longest and weight > -math.inf:
                yield tuple(spelled), weight


def between(words, options):
    """What LF-MMI lets stand for words not kept: (stars, log-weight); each but the last is for `most_left_out` words."""
    most, count = options.most_left_out, len(words)
    if count <= most and not (count and options.insertion == math.inf):
        yield 0, -count * options.insertion if count else 0.0
    for full in range(count // most + 1):
        weights = [star_for(words, options) for words in (*[words[:most]] * full, words[full * most :])]
        if count - full * most <= most:
            yield full + 1, sum(weights)


def star_for(words, options):
    """The log-sum of a deletion before inserted words, and of one star in place of the first of them or of more."""
    scripts = [(j, len(words) - j, 0) for j in range(1, len(words) + 1)] + [(0, len(words), 1)]
    penalties = options.substitution, options.insertion, options.deletion
    total = sum(
        math.exp(-sum(n * p for n, p in zip(counts, penalties, strict=True) if n)) for counts in scripts
    )
    return math.log(total) if total else -math.inf


def spoken_scripts(words, options):
    """(words and stars, which words are kept, log-weight) of all scripts of a forgiving numerator."""
    count = len(words)
    constant = -(count + 1) * math.log(1 + math.exp(-options.deletion))
    constant -= count * math.log(1 + math.exp(-options.substitution) + math.exp(-options.insertion))
    for kept in itertools.product((False, True), repeat=count):
        places = [-1, *(place for place in range(count) if kept[place]), count]
        gaps = [between(words[a + 1 : b], options) for a, b in itertools.pairwise(places)]
        for choice in itertools.product(*map(list, gaps)):
            spelled = []
            for (stars, _), place in zip(choice, places[1:], strict=True):
                spelled += [STAR] * stars + list(words[place : place + 1])
            weight = constant + sum(weight for _, weight in choice)
            if weight > -math.inf:
                yield spelled, kept, weight
