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
