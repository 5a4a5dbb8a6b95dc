"""The proof: judges by a trail (`emq.trail`) whether EMQ kept its promises. `prove` is in `emq_proof.proof`.

The promises have letters: no loss (L), delivered once but for crashes (D), the cap holds (Q), priority (P), key order
(K), one owner of a group (O), offsets (M), in time (T), dead letters once (X). E marks events that contradict each
other.
"""
