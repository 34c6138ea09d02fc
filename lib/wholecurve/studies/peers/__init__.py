"""Other engines that are too heavy for this environment: each is set up once, in a folder of its own."""

from wholecurve.errors import UserError
from wholecurve.studies.peers.llama_cpp import LlamaCppPeer
from wholecurve.studies.peers.peer import Peer
from wholecurve.studies.peers.vllm import VllmPeer

PEERS: dict[str, Peer] = {peer.name: peer for peer in (VllmPeer(), LlamaCppPeer())}


def find_peer(name: str) -> Peer:
    """The peer of that name; UserError names those that there are."""
    if name not in PEERS:
        raise UserError(f"no peer {name!r}; there is: {', '.join(PEERS)}")
    return PEERS[name]


__all__ = ["PEERS", "LlamaCppPeer", "Peer", "VllmPeer", "find_peer"]
