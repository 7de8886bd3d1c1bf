"""What the agent knows at this moment of nodes and pods, for the process beside it that answers
names: a line of JSON, pure.

Who is silent and who is gone is true for a moment only. The agent says it anew all the time, so
what has not been said anew for long is forgotten: the agent may be dead, and they may be back.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from limpet.base.decoding import decode_json
from limpet.base.records.version import VERSION, check_version
from limpet.services.rotation import Here

HERE_FILE = "here.json"
"""In the folder that is gone with a reboot; replaced as a whole, not durably."""
SAY_AGAIN_S = 10.0
"""The agent says it again after so long, while it has any doubt."""
FORGET_AFTER_S = 30.0
"""What was said so long ago leaves out nobody any more."""


class _Kept(msgspec.Struct):
    at_s: float
    here: Here
    version: int = VERSION


def encode_here(here: Here, at_s: float) -> bytes:
    """`at_s`: by the monotonic clock, which all processes of a boot share."""
    sorted_ = replace(here, silent=sorted(here.silent), gone=sorted(here.gone))
    return msgspec.json.encode(_Kept(at_s, sorted_)) + b"\n"


def decode_here(content: bytes) -> tuple[Here, float]:
    """What was known, and when. Raises: NewerFormatError; ValueError for nonsense.

    Agents said no version at first, and are upgraded apart from who reads this: none is 1.
    """
    check_version(content, said=False)
    kept = decode_json(content, _Kept)
    here = kept.here
    return replace(here, silent=frozenset(here.silent), gone=frozenset(here.gone)), kept.at_s


def as_of(here: Here, at_s: float, now_s: float) -> Here:
    """What still holds of it: who is near, and for a while who is silent or gone."""
    # A time that is to come is another boot's.
    if 0 <= now_s - at_s < FORGET_AFTER_S or not (here.silent or here.gone):
        return here
    return replace(here, silent=frozenset(), gone=frozenset())
