"""What users test their own parts with; nothing in it is needed to run.

- `crash_points`: a body of yours at every crash point, and what breaks first; also as the pytest fixture of that name
  and as `counterfoil simulate`
- `recipients`: recipients that misbehave when they are told to
- `peers`: a server on a socket of its own that misbehaves by a script, and `audit` for clients that meet it; also as
  `counterfoil audit-client`
- `conformance`: the suite that every ledger passes
- `explore` and `simulate`: what the flows of the library itself are proved with
"""
