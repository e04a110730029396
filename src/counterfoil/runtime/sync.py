"""`Runtime`: the blocking colour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from counterfoil.effects import carry, lifetime
from counterfoil.effects import decide as deciding
from counterfoil.effects.carry import DEATHS_MAX
from counterfoil.outcomes import Decision
from counterfoil.ports.clock import Clock
from counterfoil.ports.ledger import Ledger
from counterfoil.protocol import codec, keys
from counterfoil.runtime import arguments
from counterfoil.runtime.blocking import BlockingDriver, run_cancelled
from counterfoil.runtime.held import BlockingKeeper
from counterfoil.runtime.run import Run
from counterfoil.runtime.session import Session

# Looking and pruning are imported when they are first used: importing counterfoil is to be quick.
if TYPE_CHECKING:
    from counterfoil.runtime.pruning import PruneArguments, PruneReport
    from counterfoil.runtime.views import EffectView, RecordView, RunView

T = TypeVar("T")
P = TypeVar("P")
Body = Callable[..., Any]


class Runtime:
    """One life against a ledger, blocking. Use it in a `with` block.

    Args:
        url_or_ledger: a ledger's URL (`sqlite:///relative.db`, `sqlite:////absolute.db`, `memory:`), or a ledger, which
            is then not closed.
        namespace: scope of run ids; None: the ledger's own, made at its birth.
        owner: a label for people.
        clock: where the time comes from; None: the system's.
        drain_timeout: seconds to wait for effects under way when a run or the runtime is left.

    Raises:
        UsageError: the URL or an argument is wrong; nothing was opened.
    """

    def __init__(
        self,
        url_or_ledger: str | Ledger,
        *,
        namespace: str | None = None,
        owner: str | None = None,
        clock: Clock | Callable[[], float] | None = None,
        drain_timeout: float = 30.0,
    ) -> None:
        self._session = Session(url_or_ledger, namespace=namespace, owner=owner, clock=clock)
        self._drain_s = keys.seconds(drain_timeout, "drain_timeout")
        self._driver = BlockingDriver(self._session)
        self._keeper = BlockingKeeper(self._session, self._driver)

    def __enter__(self) -> Self:
        self._session.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.drain(None, self._drain_s)
        self._keeper.stop()
        self._session.close()
        self._driver.wake()

    @property
    def namespace(self) -> str:
        """The scope of this runtime's run ids."""
        self._session.check()
        return self._session.namespace

    @property
    def ledger(self) -> Ledger:
        """The open ledger."""
        return self._session.ledger

    def __repr__(self) -> str:
        return f"<Runtime: {self._session.shown}>"

    def run(self, run_id: str) -> Run:
        """Give a handle of a run. It takes no lease: any number of handles and processes may have it open."""
        self._session.check()
        return Run(self, keys.name(run_id, "run id"))

    def runs(self, *, finished: bool | None = None, limit: int | None = None) -> list[RunView]:
        """List runs, oldest first."""
        from counterfoil.runtime import views

        return views.runs(self._session, finished=finished, limit=limit)

    def show(self, run_id: str) -> list[RecordView]:
        """Return a run's timeline."""
        from counterfoil.runtime import views

        return views.show(self._session, run_id)

    def effects(self, *, state: str | None = None, run_id: str | None = None) -> list[EffectView]:
        """List effects, oldest run first, optionally of one state or one run."""
        from counterfoil.runtime import views

        return views.effects(self._session, state=state, run_id=run_id)

    def prune(self, **what: Unpack[PruneArguments]) -> PruneReport:
        """Prune finished runs, oldest first; their tombstones keep identities, fingerprints, outcomes and results.

        Args: those of `counterfoil.runtime.pruning.Pruning`, among them `older_than_s`, `limit`, `dry_run`,
            `reason` and `by`.
        """
        from counterfoil.runtime.pruning import Pruning, prune

        return prune(self._session, Pruning(**what))

    def execute(self, run_id: str, body: Callable[..., T], *args: Any) -> T:
        """Run a durable body: `body(run, *args)`. Its result is recorded and the run finished.

        A finished run's recorded result is returned without calling the body.

        Raises:
            NameConflict: the run was started with another body or other arguments.
            NotSerializable: the arguments or the result are no lossless JSON value.
        """
        arguments.coloured(body, asynchronous=False)
        given = codec.encode(list(args), what="the list of the body's arguments")
        name = arguments.body_name(body)
        with self.run(run_id) as run:
            fits = partial(arguments.callable_with, body, args)
            if (result := run._drive(lambda scope: lifetime.start(scope, name, given, check=fits))) is not None:
                return codec.decode(result)  # type: ignore[no-any-return]
            return self._carry(run, body, args)

    def _carry(self, run: Run, body: Callable[..., T], args: Iterable[Any]) -> T:
        with self._session.carrying(run.id):
            return self._carried(run, body, args)

    def _carried(
        self, run: Run, body: Callable[..., T], args: Iterable[Any], *, stopped: Callable[[], bool] = lambda: False
    ) -> T:
        result = body(run, *args)
        if stopped():
            raise run_cancelled(run.id)
        run._end(result)
        return codec.decode(lifetime.result_of(run._state.history) or b"null")  # type: ignore[no-any-return]

    def recover(
        self, bodies: Iterable[Body] | Mapping[str, Body], *, at_once: int = 1, deaths_max: int = DEATHS_MAX
    ) -> dict[str, Any]:
        """Resume the unfinished runs whose life is gone, oldest first; returns when all of them have ended.

        A run that another live process carries is left alone, and of several that recover at once one gets it. A run
        whose body has taken `deaths_max` lives in a row with it is quarantined instead.

        Args:
            bodies: the bodies that may be resumed, or a mapping from recorded names to bodies.
            at_once: how many bodies run at the same time: 1 in this thread, more in threads of their own.
            deaths_max: see above. Lives that recorded something new, or died while the run was parked, do not count.

        Returns:
            Run id to result, or to the exception that its body raised, or the ledger for this run alone.
        """
        from counterfoil.runtime.recovery import Recovery

        return Recovery(self, bodies, at_once=at_once, deaths_max=deaths_max).once()

    def lift(self, run_id: str, *, reason: str, by: str) -> None:
        """Lift a run's quarantine, durably; it may be recovered again, and its deaths are counted anew.

        Raises:
            UsageError: the run is not quarantined.
            Conflict: somebody else lifted it first.
        """
        arguments.said(reason=reason, by=by)
        self.run(run_id)._drive(lambda scope: carry.lift(scope, by=by, reason=reason))

    def deliver(self, run_id: str, event: str, id: str, payload: Any = None) -> bool:
        """Record a delivery for a run; see `Run.deliver`."""
        return self.run(run_id).deliver(event, id, payload)

    def settle(self, run_id: str, name: str, proof: Any, *, key: str, source: str) -> bool:
        """Record evidence for an effect of a run; see `Run.settle`."""
        return self.run(run_id).settle(name, proof, key=key, source=source)

    def decide(
        self,
        run_id: str,
        name: str,
        *,
        happened: Any = None,
        did_not_happen: bool = False,
        reason: str,
        by: str,
        expect_version: int,
        new_name: str | None = None,
    ) -> Decision:
        """Record what a person found out about an uncertain effect; durable on return.

        The outcome does not change. An effect that nobody can settle is ended as uncertain first.

        Args:
            run_id: the run.
            name: the effect.
            happened: what the recipient named it, if it happened.
            did_not_happen: True if it did not.
            reason: why they are sure.
            by: who they are.
            expect_version: the version that they saw (`EffectView.version`).
            new_name: the name under which it may be sent again.

        Raises:
            Conflict: somebody decided already, or the effect changed since.
            UsageError: it is not uncertain, or its owner is still performing it.
        """
        verdict = arguments.verdict(
            happened=happened,
            did_not_happen=did_not_happen,
            reason=reason,
            by=by,
            expect_version=expect_version,
            new_name=new_name,
        )
        keys.name(name)
        busy = self._driver.busy(run_id, "effect", name)
        return self.run(run_id)._drive(  # type: ignore[no-any-return]
            lambda scope: deciding.decide(scope, name, verdict, busy=busy)
        )
