"""Recipients in this process that misbehave when they are told to: usable on their own, from any thread.

    payee = Payee()
    payee.lose_reply()                    # the next request is acted on, and its reply is lost
    run.effect("charge", run=payee.charge, reconcile=payee.find)
    assert len(payee.requests) == 1

Each keeps what reached it in `requests`, what it made of it in `items`, and the keys that it was asked about in
`asked`. Its log is the judge: what it says happened, happened. Handlers of the asyncio colour are the same
methods, awaited: `payee.awaited.charge`.
"""

from counterfoil.testing.recipients.blobs import BlobStore
from counterfoil.testing.recipients.decisions import DecisionQueue
from counterfoil.testing.recipients.faulty import Arrived, Faulty, Made, ReplyLost
from counterfoil.testing.recipients.mail import MailSink
from counterfoil.testing.recipients.payee import Payee
from counterfoil.testing.recipients.served import HttpPayee

__all__ = [
    "Arrived",
    "BlobStore",
    "DecisionQueue",
    "Faulty",
    "HttpPayee",
    "Made",
    "MailSink",
    "Payee",
    "ReplyLost",
]
