"""Seeded text of about so many tokens.

Every word is one token, with its space, in the usual byte-pair vocabularies, so that lengths come
out near what was asked; what a server really counted is in its usage, and that is what is reported.
"""

import random
from typing import Final

_TEXT: Final = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law
car city community name president team minute idea body information back parent face others
level office door health person art war history party result change morning reason research girl
guy moment air teacher force education foot boy age policy music market sense nation plan
college interest death experience effect use class control care field development role effort
rate heart drug show leader light voice wife police mind price report decision son view
relationship town road arm difference value building action season society tax director position
player record paper space ground form event official matter center couple site project activity
star table need court oil situation cost industry
"""
_WORDS: Final = tuple(_TEXT.split())


def words(num_words: int, *seed: object) -> str:
    """The same seed gives the same text, whatever else was generated before."""
    rng = random.Random("/".join(map(str, seed)))
    return " ".join(rng.choices(_WORDS, k=num_words))
