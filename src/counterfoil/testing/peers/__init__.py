"""Peers on a socket of their own that misbehave by a script, and count what reached them.

    with FaultPeer(Drop()) as peer:              # reads the request, and hangs up
        my_client(peer.url)
    print(len(peer.requests))                    # how often it was really sent

`SCRIPTS` has the usual misbehaviour by name; `counterfoil audit-client` tries a client against all of it.
"""

from counterfoil.testing.peers.catalogue import SCRIPTS
from counterfoil.testing.peers.moves import (
    CANCEL,
    INTERNAL_ERROR,
    METADATA_URL,
    REFUSED_STREAM,
    Answer,
    Bomb,
    CutBody,
    CutHead,
    Drop,
    GoAway,
    Hang,
    Move,
    Refuse,
    ResetStream,
    Script,
    Trickle,
    redirect,
)
from counterfoil.testing.peers.peer import FaultPeer
from counterfoil.testing.peers.seen import Connection, Request

__all__ = [
    "CANCEL",
    "INTERNAL_ERROR",
    "METADATA_URL",
    "REFUSED_STREAM",
    "SCRIPTS",
    "Answer",
    "Bomb",
    "Connection",
    "CutBody",
    "CutHead",
    "Drop",
    "FaultPeer",
    "GoAway",
    "Hang",
    "Move",
    "Refuse",
    "Request",
    "ResetStream",
    "Script",
    "Trickle",
    "redirect",
]
